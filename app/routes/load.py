"""GET /load: how many requests the server works on, for load balancers that do not read metrics."""

from fastapi import APIRouter

from app.api.tokenize_schemas import Load
from app.http.openapi import errors
from app.metrics import Metrics


def create_router(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/load", responses=errors())
    async def load() -> Load:
        return {
            "server_load": metrics.num_running + metrics.num_waiting,
            "num_requests_running": metrics.num_running,
            "num_requests_waiting": metrics.num_waiting,
        }

    return router
