"""POST /v1/chat/completions, as JSON or as a stream of events."""

from fastapi import APIRouter, Request, Response

from app.api.chat_request import ChatRequest
from app.api.chat_schemas import ChatChunk
from app.generation.chat_service import ChatService
from app.http.answer import respond
from app.http.caller import caller
from app.http.json_body import read_body
from app.http.openapi import answers, json_body


def create_router(service: ChatService, *, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["chat"])

    @router.post(
        "/v1/chat/completions",
        openapi_extra=json_body(ChatRequest),
        responses=answers(ChatChunk, "The assistant's message.", streamed=True),
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatRequest)
        return await respond(
            request,
            service.create(body, caller(request)),
            stream=body.stream,
            keep_alive_seconds=keep_alive_seconds,
        )

    return router
