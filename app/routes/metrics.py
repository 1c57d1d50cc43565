"""GET /metrics in the Prometheus text format."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from app.metrics import Metrics


def create_router(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics")
    async def render() -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
