"""GET /metrics in the Prometheus text format."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from app.metrics import Metrics


def create_router(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["metrics"])

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"description": "The text format."}},
    )
    async def render() -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
