"""A name for every request: the client's X-Request-Id where it is harmless, else a fresh one.

It is in the response's headers, in every log line, and at `request.state.request_id`.
"""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.generation_request import REQUEST_ID_PATTERN
from app.log_format import current_request_id

HEADER = "X-Request-Id"


class RequestIdMiddleware:
    """The outermost one, so that every answer has the header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pattern = re.compile(REQUEST_ID_PATTERN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        token = current_request_id.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            current_request_id.reset(token)

    def _request_id(self, headers: Headers) -> str:
        given = headers.get(HEADER, "")
        # `fullmatch`, since `$` would let a line feed through.
        return given if self._pattern.fullmatch(given) else uuid.uuid4().hex
