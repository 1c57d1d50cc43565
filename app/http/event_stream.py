"""Server-sent events in OpenAI's form: JSON after `data: `, errors as well, `[DONE]` at the end."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.errors import TandemError, internal_error
from app.http.error_response import error_body

logger = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


class EventStreamResponse(StreamingResponse):
    """Events from a generator whose first item is there already; None is sent as a comment."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Mapping[str, Any] | None,
        rest: AsyncGenerator[Mapping[str, Any] | None, None],
    ) -> None:
        self._rest = rest
        super().__init__(
            _events(first, rest),
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # A client that disconnects while an event is sent leaves the generator suspended.
            await self._rest.aclose()


def event(data: Mapping[str, Any]) -> bytes:
    # Much faster, and the same bytes, but for the way in which floats are written.
    encoded = msgspec.json.encode(data) if _is_text(data) else encode_json(data).encode()
    return b"data: %b\n\n" % encoded


def encode_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _is_text(data: Mapping[str, Any]) -> bool:
    """Whether it is a chunk with nothing but text, in which there are no floats."""
    choices = data.get("choices")
    if not choices or "prompt_logprobs" in data:
        return False
    return not any(choice["logprobs"] or "prompt_logprobs" in choice for choice in choices)


async def _events(
    first: Mapping[str, Any] | None, rest: AsyncGenerator[Mapping[str, Any] | None, None]
) -> AsyncGenerator[bytes, None]:
    try:
        yield KEEP_ALIVE if first is None else event(first)
        async for item in rest:
            yield KEEP_ALIVE if item is None else event(item)
    except TandemError as error:
        yield event(error_body(error))
    except Exception:
        logger.exception("unexpected error in a stream")
        yield event(error_body(internal_error()))
    yield DONE
