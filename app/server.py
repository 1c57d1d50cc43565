"""The running server: engine supervisor, its client and uvicorn, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from app.dispatch.engine_client import ZmqEngineClient
from app.dispatch.engine_process import EngineProcess
from app.dispatch.engine_supervisor import EngineSupervisor
from app.dispatch.request_queue import RequestQueue
from app.errors import ServerStoppingError
from app.http.http_protocol import http_options
from app.http.http_server import HttpServer
from app.main import create_app
from app.metrics import Metrics
from app.settings import Settings
from app.text.grammar import GrammarResolver
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_config import TokenizerConfig
from engine.config import EngineConfig
from engine.messages import EngineReady

# Load balancers keep connections for 60 s; closing first would make their next request fail.
KEEP_ALIVE_SECONDS = 75
# For readers to take what was written, at the very end.
LAST_ANSWER_SECONDS = 3
EXPIRY_SECONDS = 0.25


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
    tokenizer_config: TokenizerConfig,
    listener: socket.socket,
    on_ready: Callable[[EngineReady], None],
) -> None:
    """Serve until a signal comes; raises EngineFailedError when the engine cannot be started."""
    metrics = Metrics(
        model_name=settings.model_name,
        max_num_seqs=settings.max_num_seqs,
        num_speculative_tokens=settings.num_speculative_tokens,
    )
    client = _create_client(settings, metrics)
    supervisor = EngineSupervisor(
        client,
        metrics,
        lambda: EngineProcess(engine_config),
        hang_seconds=settings.engine_hang_seconds,
        max_crashes=settings.max_engine_crashes,
    )
    grammars = GrammarResolver(Path(engine_config.model_path) / "tokenizer.json")
    application = create_app(
        settings,
        client,
        tokenizer,
        metrics,
        tokenizer_config=tokenizer_config,
        grammars=grammars,
    )
    server = HttpServer(
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
    with _signals(server.request_exit):
        async with _running(
            _supervise(supervisor, client, server), _announce(client, on_ready), _expire(client)
        ):
            try:
                await server.serve(sockets=[listener])
            finally:
                await grammars.close()


def _create_client(settings: Settings, metrics: Metrics) -> ZmqEngineClient:
    queue = RequestQueue(
        max_num_requests=settings.max_num_queued_reqs,
        max_num_tokens=settings.max_num_queued_tokens,
    )
    return ZmqEngineClient(queue, metrics, max_queue_seconds=settings.max_queue_seconds)


@contextlib.contextmanager
def _signals(handle: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, handle)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


@contextlib.asynccontextmanager
async def _running(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Tasks that end with the block; what one of them has raised is raised at its end."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _supervise(
    supervisor: EngineSupervisor, client: ZmqEngineClient, server: HttpServer
) -> None:
    """Without a supervisor nobody would be answered."""
    try:
        await supervisor.run()
    except Exception as error:
        client.fail(str(error))
        server.should_exit = True
        raise


async def _announce(client: ZmqEngineClient, on_ready: Callable[[EngineReady], None]) -> None:
    on_ready(await client.wait_ready())


async def _expire(client: ZmqEngineClient) -> None:
    while True:
        await asyncio.sleep(EXPIRY_SECONDS)
        client.expire()
