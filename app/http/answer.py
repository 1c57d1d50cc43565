"""From something that generates to an HTTP response: JSON in one piece, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, Protocol

from fastapi import Request, Response

from app.http.disconnect import until_disconnect
from app.http.event_stream import EventStreamResponse, encode_json


class Answer(Protocol):
    """A completion or a chat completion that can run."""

    async def whole(self) -> Mapping[str, Any]: ...

    def chunks(self, idle_seconds: float) -> AsyncGenerator[Mapping[str, Any] | None, None]: ...


async def respond(
    request: Request, creating: Awaitable[Answer], *, stream: bool, keep_alive_seconds: float
) -> Response:
    """Everything ends when the client goes away, at whatever stage."""
    answer = await until_disconnect(request.receive, creating)
    if not stream:
        whole = await until_disconnect(request.receive, answer.whole())
        return Response(encode_json(whole), media_type="application/json")
    # What fails before the first chunk still gets a status of its own.
    chunks = answer.chunks(keep_alive_seconds)
    first = await until_disconnect(request.receive, anext(chunks))
    return EventStreamResponse(first, chunks)
