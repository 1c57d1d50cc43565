"""The HTTP application, put together from parts that are passed in."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware import Middleware

from app import __version__
from app.dispatch.engine_client import EngineClient
from app.generation.chat_service import ChatService
from app.generation.completion_service import CompletionService
from app.generation.generation_service import GenerationService
from app.generation.tokenize_service import TokenizeService
from app.http.access_log import AccessLogMiddleware
from app.http.api_keys import ApiKeyMiddleware, ApiKeys
from app.http.body_limit import BodyLimitMiddleware
from app.http.cors import CorsMiddleware
from app.http.error_boundary import ErrorBoundaryMiddleware
from app.http.error_response import install_error_handlers
from app.http.openapi import COMMON_ERRORS, DocumentedApi, errors
from app.http.prompt_log import PromptLogMiddleware
from app.http.request_id import RequestIdMiddleware
from app.metrics import Metrics
from app.routes import chat, completions, health, load, models, tokenize
from app.routes import metrics as metrics_route
from app.settings import Settings
from app.text.chat_renderer import ChatRenderer
from app.text.chat_template import ChatTemplate
from app.text.grammar import GrammarResolver
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_config import TokenizerConfig


def create_app(
    settings: Settings,
    engine_client: EngineClient,
    tokenizer: Tokenizer,
    metrics: Metrics,
    *,
    tokenizer_config: TokenizerConfig | None = None,
    grammars: GrammarResolver | None = None,
) -> FastAPI:
    app = DocumentedApi(
        title="Tandem",
        version=__version__,
        middleware=_middleware(settings),
        responses=errors(*COMMON_ERRORS),
        # A redirect would make some clients send a POST again as a GET.
        redirect_slashes=False,
    )
    install_error_handlers(app)
    generations = GenerationService(settings, engine_client, tokenizer, metrics, grammars)
    app.include_router(
        completions.create_router(
            CompletionService(generations), keep_alive_seconds=settings.sse_keep_alive_seconds
        )
    )
    config = tokenizer_config or TokenizerConfig()
    template = ChatTemplate(config.chat_template, config.special_tokens)
    renderer = ChatRenderer(template, generations.tokenizer_threads)
    app.include_router(
        chat.create_router(
            ChatService(generations, renderer), keep_alive_seconds=settings.sse_keep_alive_seconds
        )
    )
    app.include_router(tokenize.create_router(TokenizeService(generations, renderer, config)))
    app.include_router(load.create_router(metrics))
    app.include_router(models.create_router(settings.model_name, engine_client))
    app.include_router(health.create_router(engine_client))
    app.include_router(metrics_route.create_router(metrics))
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    """From the outside in: an answer of one of them passes through those before it."""
    middleware = [Middleware(RequestIdMiddleware), Middleware(AccessLogMiddleware)]
    if origins := settings.cors_allow_origins:
        middleware.append(Middleware(CorsMiddleware, origins=origins))
    middleware.append(Middleware(ErrorBoundaryMiddleware))
    if keys := settings.api_keys:
        guard_metrics = settings.api_key_for_metrics
        middleware.append(
            Middleware(ApiKeyMiddleware, keys=ApiKeys(keys), guard_metrics=guard_metrics)
        )
    middleware.append(
        Middleware(
            BodyLimitMiddleware,
            max_bytes=settings.max_body_bytes,
            read_timeout=settings.read_timeout,
        )
    )
    if settings.log_prompts:
        middleware.append(Middleware(PromptLogMiddleware))
    return middleware
