"""How large a request's body may be, and how long it may take to arrive."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RequestTimeoutError, RequestTooLargeError
from app.http.error_response import error_response


class BodyLimitMiddleware:
    """A body that says that it is too large is refused unread, any other one when it gets there."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, read_timeout: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._read_timeout = read_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._declared_bytes(scope) > self._max_bytes:
            await error_response(too_large(self._max_bytes))(scope, receive, send)
        else:
            body = _Body(receive, max_bytes=self._max_bytes, read_timeout=self._read_timeout)
            await self._app(scope, body.receive, send)

    def _declared_bytes(self, scope: Scope) -> int:
        declared = Headers(scope=scope).get("Content-Length", "")
        return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


class _Body:
    """Counts what arrives; raises errors that the routes let through."""

    def __init__(self, receive: Receive, *, max_bytes: int, read_timeout: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._read_timeout = read_timeout
        self._num_bytes = 0
        self._deadline: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        message = await self._receive_in_time()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        self._complete = not message.get("more_body", False)
        return message

    async def _receive_in_time(self) -> Message:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._read_timeout
        try:
            return await asyncio.wait_for(self._receive(), self._deadline - now)
        except asyncio.TimeoutError:
            raise RequestTimeoutError(
                f"The request's body did not arrive within {self._read_timeout:g} seconds."
            ) from None


def too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The request's body is too large: this server takes at most {max_bytes} bytes."
    )
