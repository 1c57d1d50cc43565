"""Writes what clients send and get to the log; installed only when the operator asks for it."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.api_keys import PUBLIC_PATHS

logger = logging.getLogger(__name__)


class PromptLogMiddleware:
    """Bodies as they pass, piece by piece, so that a stream is not held back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return

        async def logged_receive() -> Message:
            message = await receive()
            _log("received", message)
            return message

        async def logged_send(message: Message) -> None:
            _log("sent", message)
            await send(message)

        await self._app(scope, logged_receive, logged_send)


def _log(verb: str, message: Message) -> None:
    if body := message.get("body"):
        logger.info("%s %s", verb, bytes(body).decode(errors="replace"))
