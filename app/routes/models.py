"""What is served: GET /v1/models and /version."""

import time

from fastapi import APIRouter

from app import __version__
from app.api.schemas import ModelCard, ModelList
from app.dispatch.engine_client import EngineClient
from app.errors import ModelNotFoundError
from app.http.openapi import errors


def create_router(model_name: str, engine_client: EngineClient) -> APIRouter:
    router = APIRouter(tags=["models"])
    created = int(time.time())

    def card() -> ModelCard:
        return ModelCard(
            id=model_name,
            created=created,
            root=model_name,
            max_model_len=engine_client.require_model().max_model_len,
        )

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        return ModelList(data=[card()])

    @router.get("/v1/models/{name:path}", responses=errors(404))
    async def retrieve_model(name: str) -> ModelCard:
        if name != model_name:
            raise ModelNotFoundError(
                f"The model does not exist; this server has '{model_name}'.", param="model"
            )
        return card()

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    return router
