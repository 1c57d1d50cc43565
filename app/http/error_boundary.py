"""Where what nobody expected ends: in the log with its details, and at the client without them."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import internal_error
from app.http.error_response import error_response

logger = logging.getLogger(__name__)


class ErrorBoundaryMiddleware:
    """In the place of Starlette's, whose answer passes by all other middlewares."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            logger.exception("unexpected error")
            # A response that has begun is cut off by the server below.
            if not started:
                await error_response(internal_error())(scope, receive, send)
