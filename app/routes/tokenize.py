"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from fastapi import APIRouter, Request, Response

from app.api.tokenize_request import DetokenizeRequest, TokenizeRequest
from app.api.tokenize_schemas import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo
from app.generation.tokenize_service import TokenizeService
from app.http.disconnect import until_disconnect
from app.http.event_stream import encode_json
from app.http.json_body import read_body
from app.http.openapi import answers, errors, json_body


def create_router(service: TokenizeService) -> APIRouter:
    router = APIRouter(tags=["tokenizer"])

    @router.post(
        "/tokenize",
        openapi_extra=json_body(TokenizeRequest),
        responses=answers(TokenizeAnswer, "The token ids."),
    )
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of messages."""
        body = await read_body(request, TokenizeRequest)
        answer = await until_disconnect(request.receive, service.tokenize(body))
        return Response(encode_json(answer), media_type="application/json")

    @router.post(
        "/detokenize",
        openapi_extra=json_body(DetokenizeRequest),
        responses=answers(DetokenizeAnswer, "The text, special tokens included."),
    )
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = await read_body(request, DetokenizeRequest)
        answer = await until_disconnect(request.receive, service.detokenize(body))
        return Response(encode_json(answer), media_type="application/json")

    @router.get("/tokenizer_info", responses=errors())
    async def tokenizer_info() -> TokenizerInfo:
        return service.info()

    return router
