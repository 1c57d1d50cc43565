"""One line per request, with the route's template in place of the path, which a client chooses."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.api_keys import PUBLIC_PATHS

logger = logging.getLogger(__name__)

# As other servers log a client that left before its answer was complete.
CLIENT_CLOSED_REQUEST = 499


class AccessLogMiddleware:
    """Probes and scrapes are logged at debug, the rest at info."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = CLIENT_CLOSED_REQUEST
        complete = False

        async def watched_send(message: Message) -> None:
            nonlocal status, complete
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                complete = not message.get("more_body", False)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            _log(scope, status, time.monotonic() - started, complete=complete)


def _log(scope: Scope, status: int, seconds: float, *, complete: bool) -> None:
    route = getattr(scope.get("route"), "path", "none")
    fields: dict[str, object] = {
        "method": scope["method"],
        "route": route,
        "status": status,
        "seconds": round(seconds, 4),
    }
    if tenant := scope["state"].get("tenant"):
        fields["tenant"] = tenant
    if not complete:
        fields["complete"] = False
    level = logging.DEBUG if route in PUBLIC_PATHS else logging.INFO
    logger.log(level, "request", extra={"fields": fields})
