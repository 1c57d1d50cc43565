"""All that speaks HTTP, put together. Slow to import, so the engine is started before."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn

from app.dispatch.engine_client import ZmqEngineClient
from app.errors import ServerStoppingError
from app.http.http_protocol import http_options
from app.http.http_server import HttpServer
from app.main import create_app
from app.metrics import Metrics
from app.settings import Settings
from app.text.grammar import GrammarResolver
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_config import TokenizerConfig

# Load balancers keep connections for 60 s; closing first would make their next request fail.
KEEP_ALIVE_SECONDS = 75
# For readers to take what was written, at the very end.
LAST_ANSWER_SECONDS = 3


class HttpSide:
    """The application, and uvicorn to serve it."""

    def __init__(
        self,
        settings: Settings,
        model_path: Path,
        tokenizer_config: TokenizerConfig,
        client: ZmqEngineClient,
        metrics: Metrics,
    ) -> None:
        self._grammars = GrammarResolver(model_path / "tokenizer.json")
        application = create_app(
            settings,
            client,
            Tokenizer.from_folder(model_path),
            metrics,
            tokenizer_config=tokenizer_config,
            grammars=self._grammars,
        )
        self.server = HttpServer(
            uvicorn.Config(
                application,
                **http_options(settings),
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_ANSWER_SECONDS,
            ),
            drain_seconds=settings.shutdown_timeout,
            on_drain=client.stop_accepting,
            on_deadline=lambda: client.end_requests(ServerStoppingError()),
        )

    async def serve(self, listener: socket.socket) -> None:
        """Until the server is told to exit."""
        # From here on clients wait in place of being refused.
        listener.listen()
        try:
            await self.server.serve(sockets=[listener])
        finally:
            await self._grammars.close()
