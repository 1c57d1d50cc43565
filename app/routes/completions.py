"""POST /v1/completions, as JSON or as a stream of events."""

from fastapi import APIRouter, Request, Response

from app.completion_service import CompletionService
from app.disconnect import until_disconnect
from app.event_stream import EventStreamResponse, encode_json
from app.schemas import CompletionRequest, parse_completion_request

# FastAPI does not see the body, which is parsed more strictly than it would.
SCHEMA = "#/paths/~1v1~1completions/post/requestBody/content/application~1json/schema"
REQUEST_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": CompletionRequest.model_json_schema(ref_template=f"{SCHEMA}/$defs/{{model}}")
        }
    },
}


def create_router(service: CompletionService, *, keep_alive_seconds: float) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post("/v1/completions", openapi_extra={"requestBody": REQUEST_BODY})
    async def create_completion(request: Request) -> Response:
        """Complete one prompt or several."""
        body = parse_completion_request(await request.body())
        completion = await service.create(body)
        if not body.stream:
            answer = await until_disconnect(request.receive, completion.whole())
            return Response(encode_json(answer), media_type="application/json")
        # What fails before the first chunk still gets a status of its own.
        chunks = completion.chunks(keep_alive_seconds)
        first = await until_disconnect(request.receive, anext(chunks))
        return EventStreamResponse(first, chunks)

    return router
