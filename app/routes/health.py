"""Probes: alive while the process answers, ready while the engine takes requests."""

from fastapi import APIRouter

from app.engine_client import EngineClient


def create_router(engine_client: EngineClient) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @router.get("/health/ready")
    @router.get("/health")
    @router.get("/ready")
    async def ready() -> dict[str, str]:
        engine_client.require_model()
        return {"status": "ready"}

    return router
