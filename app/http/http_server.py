"""uvicorn with another way to stop: it answers while it drains. Signals are handled elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator

import uvicorn


class HttpServer(uvicorn.Server):
    """uvicorn closes its socket as soon as it is to exit. Here it drains before that.

    `on_drain` is called at the first signal, `on_deadline` when no request is left, `drain_seconds`
    later, or at the second signal.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain_seconds: float,
        on_drain: Callable[[], None],
        on_deadline: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._on_drain = on_drain
        self._on_deadline = on_deadline
        self.drainer: asyncio.Task[None] | None = None

    def request_exit(self) -> None:
        """What a signal does."""
        if self.drainer is None:
            self._on_drain()
            self.drainer = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._exit()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def _drain(self) -> None:
        """Wait for the requests of now; later ones are only told that the server stops."""
        tasks = list(self.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=self._drain_seconds)
        self._exit()

    def _exit(self) -> None:
        self._on_deadline()
        self.should_exit = True
