"""POST /v1/completions, as JSON or as a stream of events."""

from fastapi import APIRouter, Request, Response

from app.api.completion_request import CompletionRequest
from app.api.schemas import CompletionChunk
from app.generation.completion_service import CompletionService
from app.http.answer import respond
from app.http.caller import caller
from app.http.json_body import read_body
from app.http.openapi import answers, json_body


def create_router(service: CompletionService, *, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post(
        "/v1/completions",
        openapi_extra=json_body(CompletionRequest),
        responses=answers(CompletionChunk, "The completion.", streamed=True),
    )
    async def create_completion(request: Request) -> Response:
        """Complete one prompt or several."""
        body = await read_body(request, CompletionRequest)
        return await respond(
            request,
            service.create(body, caller(request)),
            stream=body.stream,
            keep_alive_seconds=keep_alive_seconds,
        )

    return router
