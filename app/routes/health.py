"""Probes: alive until the engine is given up, ready while it takes requests."""

from fastapi import APIRouter

from app.dispatch.engine_client import EngineClient


def create_router(engine_client: EngineClient) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        engine_client.require_alive()
        return {"status": "live"}

    @router.get("/health/ready")
    @router.get("/health")
    @router.get("/ready")
    async def ready() -> dict[str, str]:
        engine_client.require_ready()
        return {"status": "ready"}

    return router
