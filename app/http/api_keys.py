"""Who may ask: every path needs an API key, except the few that are listed here.

The path that is compared is the one that the router compares, so that no spelling of a path can
mean one thing here and another there.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import AuthenticationError
from app.http.error_response import error_response

HEALTH_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ready", "/ping"})
METRICS_PATH = "/metrics"
PUBLIC_PATHS = HEALTH_PATHS | {METRICS_PATH}

HOW_TO_SEND = "Send one in the header 'Authorization: Bearer YOUR_KEY'."


class ApiKeys:
    """Knows the keys by their digests; names them by their order, for logs and fair turns."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [
            (f"key-{number}", _digest(key.encode())) for number, key in enumerate(keys, 1)
        ]

    def tenant(self, key: bytes) -> str | None:
        """The name of a key; None for one that is not known. Takes as long for every key."""
        digest = _digest(key)
        found = None
        for name, known in self._digests:
            if hmac.compare_digest(digest, known):
                found = name
        return found


class ApiKeyMiddleware:
    """Answers 401 itself, and tells the routes at `request.state.tenant` whose key it was."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys, guard_metrics: bool) -> None:
        self._app = app
        self._keys = keys
        self._public_paths = HEALTH_PATHS if guard_metrics else PUBLIC_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._public_paths:
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["tenant"] = self._tenant(Headers(scope=scope))
        except AuthenticationError as error:
            await error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _tenant(self, headers: Headers) -> str:
        given = headers.getlist("Authorization")
        if not given:
            raise AuthenticationError(f"This server needs an API key. {HOW_TO_SEND}")
        scheme, _, key = given[0].partition(" ")
        tenant = self._keys.tenant(key.strip().encode("latin-1"))
        if len(given) > 1 or scheme.lower() != "bearer" or tenant is None:
            raise AuthenticationError(f"This is not a valid API key. {HOW_TO_SEND}")
        return tenant


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
