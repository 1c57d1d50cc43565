"""The HTTP application, put together from parts that are passed in."""

from __future__ import annotations

from fastapi import FastAPI

from app import __version__
from app.completion_service import CompletionService
from app.engine_client import EngineClient
from app.errors import install_error_handlers
from app.metrics import Metrics
from app.routes import completions, health, models
from app.routes import metrics as metrics_route
from app.settings import Settings
from app.tokenizer import Tokenizer


def create_app(
    settings: Settings, engine_client: EngineClient, tokenizer: Tokenizer, metrics: Metrics
) -> FastAPI:
    app = FastAPI(title="Tandem", version=__version__)
    install_error_handlers(app)
    service = CompletionService(settings, engine_client, tokenizer, metrics)
    app.include_router(
        completions.create_router(service, keep_alive_seconds=settings.sse_keep_alive_seconds)
    )
    app.include_router(models.create_router(settings.model_name, engine_client))
    app.include_router(health.create_router(engine_client))
    app.include_router(metrics_route.create_router(metrics))
    return app
