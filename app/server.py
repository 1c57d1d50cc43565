"""The running server: an engine process, its client and uvicorn, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator

import uvicorn

from app.engine_client import ZmqEngineClient
from app.engine_process import EngineProcess
from app.errors import EngineFailedError, ServerStoppingError
from app.main import create_app
from app.metrics import Metrics
from app.settings import Settings
from app.tokenizer import Tokenizer
from engine.config import EngineConfig
from engine.messages import EngineReady

# Load balancers keep connections for 60 s; closing first would make their next request fail.
KEEP_ALIVE_SECONDS = 75
LAST_WORDS_SECONDS = 0.5
LAST_ANSWER_SECONDS = 5
ENGINE_STOP_SECONDS = 5.0


class HttpServer(uvicorn.Server):
    """uvicorn, whose signals are handled here: its own way would raise them again at the end.

    After the first signal requests in flight go on; `on_deadline` is called `drain_seconds` later,
    or at the second signal.
    """

    def __init__(
        self, config: uvicorn.Config, *, drain_seconds: float, on_deadline: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._on_deadline = on_deadline

    def request_exit(self) -> None:
        """What a signal does."""
        if self.should_exit:
            self._on_deadline()
        else:
            asyncio.get_running_loop().call_later(self._drain_seconds, self._on_deadline)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for each in signals:
            loop.add_signal_handler(each, self.request_exit)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)


def bind_socket(host: str, port: int) -> socket.socket:
    """Raises OSError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


async def serve(
    settings: Settings,
    engine_config: EngineConfig,
    tokenizer: Tokenizer,
    listener: socket.socket,
    on_ready: Callable[[EngineReady], None],
) -> None:
    """Serve until a signal comes; raises EngineFailedError when the engine ends before that."""
    metrics = Metrics(
        model_name=settings.model_name,
        max_num_seqs=settings.max_num_seqs,
        num_speculative_tokens=settings.num_speculative_tokens,
    )
    async with _engine(engine_config, metrics) as (process, client):
        config = uvicorn.Config(
            create_app(settings, client, tokenizer, metrics),
            log_level=settings.log_level if settings.log_level == "debug" else "warning",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=settings.shutdown_timeout + LAST_ANSWER_SECONDS,
            server_header=False,
        )
        server = HttpServer(
            config,
            drain_seconds=settings.shutdown_timeout,
            on_deadline=lambda: client.end_requests(ServerStoppingError()),
        )
        watcher = asyncio.create_task(_watch(process, client, server))
        announcer = asyncio.create_task(_announce(client, on_ready))
        try:
            await server.serve(sockets=[listener])
        finally:
            announcer.cancel()
            watcher.cancel()
        if client.failure is not None:
            raise EngineFailedError(client.failure)


@contextlib.asynccontextmanager
async def _engine(
    config: EngineConfig, metrics: Metrics
) -> AsyncIterator[tuple[EngineProcess, ZmqEngineClient]]:
    process = EngineProcess(config)
    try:
        with ZmqEngineClient(process.address, metrics) as client:
            await process.start()
            try:
                yield process, client
            finally:
                client.shutdown()
                # An engine that is still loading does not listen.
                await process.stop(grace_seconds=ENGINE_STOP_SECONDS if client.is_ready else 0)
    finally:
        process.remove_folder()


async def _watch(process: EngineProcess, client: ZmqEngineClient, server: HttpServer) -> None:
    """When the engine ends, answer everybody and leave."""
    last_words = asyncio.create_task(client.run())
    exit_words = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({last_words, exit_words}, return_when=asyncio.FIRST_COMPLETED)
        # An engine that ended may have said why, and that may not have been read yet.
        await asyncio.wait({last_words}, timeout=LAST_WORDS_SECONDS)
        client.fail(last_words.result() if last_words.done() else exit_words.result())
        server.should_exit = True
    finally:
        last_words.cancel()
        exit_words.cancel()


async def _announce(client: ZmqEngineClient, on_ready: Callable[[EngineReady], None]) -> None:
    on_ready(await client.wait_ready())
