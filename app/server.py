"""The running server: engine supervisor, its client and uvicorn, started and ended together.

The engine takes the longest, so it starts first, and the HTTP side is made while it loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.dispatch.engine_client import ZmqEngineClient
from app.dispatch.engine_process import ENGINE_COMMAND, EngineProcess
from app.dispatch.engine_supervisor import EngineSupervisor
from app.dispatch.request_queue import RequestQueue
from app.metrics import Metrics
from app.settings import Settings
from app.text.tokenizer_config import TokenizerConfig
from engine.config import EngineConfig
from engine.messages import EngineReady

if TYPE_CHECKING:
    from app.http_side import HttpSide

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
    tokenizer_config: TokenizerConfig,
    listener: socket.socket,
    on_ready: Callable[[EngineReady], None],
    *,
    engine_command: Sequence[str] = ENGINE_COMMAND,
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
        lambda: EngineProcess(engine_config, command=engine_command),
        hang_seconds=settings.engine_hang_seconds,
        max_crashes=settings.max_engine_crashes,
    )
    model_path = Path(engine_config.model_path)

    def create_http_side() -> HttpSide:
        # Half of its time is this import.
        from app.http_side import HttpSide

        return HttpSide(settings, model_path, tokenizer_config, client, metrics)

    starting = asyncio.ensure_future(asyncio.to_thread(create_http_side))
    with _signals(lambda: _request_exit(starting)):
        async with _running(
            _supervise(supervisor, client, starting),
            _announce(client, starting, on_ready),
            _expire(client),
        ):
            await asyncio.wait({starting})
            if not starting.cancelled():
                await starting.result().serve(listener)


def _create_client(settings: Settings, metrics: Metrics) -> ZmqEngineClient:
    queue = RequestQueue(
        max_num_requests=settings.max_num_queued_reqs,
        max_num_tokens=settings.max_num_queued_tokens,
    )
    return ZmqEngineClient(queue, metrics, max_queue_seconds=settings.max_queue_seconds)


def _request_exit(starting: asyncio.Future[HttpSide]) -> None:
    """What a signal does."""
    if not starting.done():
        starting.cancel()
    elif not starting.cancelled():
        starting.result().server.request_exit()


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
    supervisor: EngineSupervisor, client: ZmqEngineClient, starting: asyncio.Future[HttpSide]
) -> None:
    """Without a supervisor nobody would be answered."""
    try:
        await supervisor.run()
    except Exception as error:
        client.fail(str(error))
        (await starting).server.should_exit = True
        raise


async def _announce(
    client: ZmqEngineClient,
    starting: asyncio.Future[HttpSide],
    on_ready: Callable[[EngineReady], None],
) -> None:
    model = await client.wait_ready()
    await starting
    on_ready(model)


async def _expire(client: ZmqEngineClient) -> None:
    while True:
        await asyncio.sleep(EXPIRY_SECONDS)
        client.expire()
