"""The outputs of one HTTP call's engine requests, between the engine's pace and the reader's.

Its size is bounded by what the requests may generate. A slow reader finds all that came at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from app.errors import TandemError
from engine.messages import RequestOutput


class OutputStream:
    """Written by the engine client, read by one coroutine; `abort` hears of what is not wanted.

    `is_started`: at least one of the requests has left the queue.
    """

    def __init__(self, request_ids: Iterable[str], abort: Callable[[str], None]) -> None:
        self.is_started = False
        self._unfinished = set(request_ids)
        self._abort = abort
        self._outputs: list[RequestOutput] = []
        self._error: TandemError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._patience_end: float | None = None

    def put(self, output: RequestOutput) -> None:
        if output.request_id not in self._unfinished:
            return
        if output.finish_reason is not None:
            self._unfinished.discard(output.request_id)
        self._outputs.append(output)
        self._wake()

    def fail(self, error: TandemError) -> None:
        """Nothing more comes, since the requests were given up; they are aborted."""
        self.close()
        self._error = error
        self._wake()

    async def get(self, timeout: float | None = None) -> list[RequestOutput]:
        """What came since the last call; empty after `timeout` seconds, or when all is said."""
        if not self._outputs and self._unfinished:
            await self._change(timeout)
        outputs, self._outputs = self._outputs, []
        if not outputs and self._error is not None:
            raise self._error
        return outputs

    def abort(self, request_id: str) -> None:
        """Do without the rest of one request."""
        if request_id in self._unfinished:
            self._unfinished.discard(request_id)
            self._abort(request_id)

    def close(self) -> None:
        """Do without the rest of all requests."""
        for request_id in list(self._unfinished):
            self.abort(request_id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _change(self, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._patience_end = None if timeout is None else loop.time() + timeout
        self._set_timer(loop)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """A look needs no timer of its own: one that rings too early is set again then."""
        end = self._patience_end
        if end is None or (self._timer is not None and self._timer.when() <= end):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(end, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None or self._patience_end is None:
            return
        if loop.time() < self._patience_end:
            self._set_timer(loop)
        else:
            self._wake()
