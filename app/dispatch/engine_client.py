"""The front end's view of the engine: requests go in, outputs come back. Knows no text.

A request outlives the engine process: when that dies, it is sent again to the next one, with the
tokens that came already, and goes on with the same ones that it would have had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from app.dispatch.engine_link import EngineLink
from app.dispatch.in_flight_request import InFlightRequest
from app.dispatch.output_stream import OutputStream
from app.dispatch.request_queue import RequestQueue
from app.errors import (
    EngineCrashedError,
    EngineDownError,
    EngineFailedError,
    EngineStartingError,
    QueueFullError,
    QueueTimeoutError,
    ServerStoppingError,
    TandemError,
)
from app.metrics import Metrics
from engine.messages import AbortRequest, AddRequest, EngineReady, Shutdown, StepOutput

logger = logging.getLogger(__name__)

# A suspect has passed the place where the engine died when it is this much further than what was
# known of it then: a step that was lost is shorter.
TRIAL_TOKENS = 32
# This part of the slots is sent in advance, so that one that becomes free is taken at once.
LOOKAHEAD_DIVISOR = 4


class EngineClient(Protocol):
    """What the HTTP side asks of an engine."""

    def require_model(self) -> EngineReady:
        """What the engine said when it was ready; it may be starting again now.

        Raises EngineStartingError before that, EngineDownError when it has ended for good, and
        ServerStoppingError when nothing new is taken.
        """
        ...

    def require_ready(self) -> None:
        """Raises as `require_model`, and EngineStartingError while the engine starts again."""
        ...

    def require_alive(self) -> None:
        """Raises EngineDownError when the engine has ended for good."""
        ...

    def generate(self, requests: Sequence[AddRequest], *, tenant: str = "") -> OutputStream:
        """Start the requests; closing the stream aborts those that have not finished.

        They wait in a bounded queue whose turns are shared fairly between tenants. Raises
        QueueFullError when they would not fit, all of them or none.
        """
        ...


class ZmqEngineClient:
    """The requests in flight, and the engine process that works on them while there is one.

    Requests that were in the step in which an engine died are suspects: they run alone, one after
    the other and before all others, until each has shown that it does not kill the engine.
    """

    def __init__(self, queue: RequestQueue, metrics: Metrics, *, max_queue_seconds: float) -> None:
        self._queue = queue
        self._metrics = metrics
        self._max_queue_seconds = max_queue_seconds
        self._requests: dict[str, InFlightRequest] = {}
        self._in_engine: dict[str, InFlightRequest] = {}
        self._suspects: dict[str, InFlightRequest] = {}
        self._link: EngineLink | None = None
        self._model: EngineReady | None = None
        self._max_in_engine = 0
        self._was_ready = asyncio.Event()
        self._is_stopping = False
        self.failure: str | None = None
        self.num_steps = 0
        self.awaits_step = False

    def require_model(self) -> EngineReady:
        self.require_alive()
        if self._is_stopping:
            raise ServerStoppingError
        if self._model is None:
            raise EngineStartingError
        return self._model

    def require_ready(self) -> None:
        self.require_model()
        if self._link is None:
            raise EngineStartingError

    def require_alive(self) -> None:
        if self.failure is not None:
            raise EngineDownError(f"The engine is down: {self.failure}")

    @property
    def was_ready(self) -> bool:
        return self._model is not None

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    async def wait_ready(self) -> EngineReady:
        await self._was_ready.wait()
        assert self._model is not None
        return self._model

    def generate(self, requests: Sequence[AddRequest], *, tenant: str = "") -> OutputStream:
        self.require_model()
        try:
            self._queue.check_room(requests)
        except QueueFullError:
            self._metrics.record_rejection("queue_full")
            raise
        stream = OutputStream([request.request_id for request in requests], self._abort)
        for request in requests:
            self._requests[request.request_id] = InFlightRequest(request, stream, tenant)
            self._queue.add(request, tenant=tenant)
        self._dispatch()
        return stream

    def connect(self, link: EngineLink, model: EngineReady) -> None:
        """An engine is ready; it gets what waits."""
        self._link = link
        self._model = model
        self._max_in_engine = model.max_num_seqs + -(-model.max_num_seqs // LOOKAHEAD_DIVISOR)
        self._metrics.record_engine(up=True, ready=True)
        self._was_ready.set()
        self._dispatch()

    def hand_out(self, step: StepOutput) -> None:
        """Give what the engine says to those who asked."""
        self.num_steps += 1
        for output in step.outputs:
            request = self._requests.get(output.request_id)
            if request is None:
                continue
            given = request.take(output)
            request.stream.put(given)
            if given.finish_reason is not None:
                self._forget(output.request_id)
            elif output.finish_reason is not None:
                self._acquit(request)
        self._metrics.record_step(step.stats)
        self.awaits_step = bool(self._in_engine)
        self._dispatch()

    def disconnect(self, running_ids: Collection[str] = ()) -> bool:
        """The engine has ended: what it had waits for the next one.

        Its death is blamed on the requests that were running, if any are named. Returns whether
        this has proved one of them guilty.
        """
        num_requests = len(self._requests)
        self._link = None
        self.awaits_step = False
        lost, self._in_engine = self._in_engine, {}
        for request_id, request in lost.items():
            if request_id in running_ids:
                self._blame(request)
            elif request_id not in self._suspects:
                self._queue.add(request.request, tenant=request.tenant, front=True)
        self._metrics.record_engine(up=False, ready=False)
        self._metrics.record_idle()
        self._record_queue()
        return len(self._requests) < num_requests

    def expire(self) -> None:
        """End the calls of which nothing was begun for as long as they may wait."""
        for request_id in self._queue.expired(self._max_queue_seconds):
            request = self._requests.get(request_id)
            if request is not None and not request.stream.is_started:
                self._metrics.record_rejection("queue_timeout")
                request.stream.fail(QueueTimeoutError())

    def fail(self, reason: str) -> None:
        """End every request in flight, and refuse the next ones."""
        self.failure = reason
        self.end_requests(EngineFailedError("The engine failed while it worked on this request."))

    def stop_accepting(self) -> None:
        """Refuse new requests; those in flight go on."""
        self._is_stopping = True

    def end_requests(self, error: TandemError) -> None:
        """Answer every request in flight with an error."""
        for stream in {request.stream for request in self._requests.values()}:
            stream.fail(error)

    def shutdown(self) -> None:
        """Tell the engine, if one listens, to end."""
        if self._link is not None:
            self._link.send(Shutdown())

    def _dispatch(self) -> None:
        """Send what may run now: one suspect, or else as many as there is room for."""
        if self._link is not None and not self._suspects:
            self._fill(self._link)
        elif self._link is not None and not self._in_engine:
            suspect = next(iter(self._suspects.values()))
            self._send(self._link, suspect, max_new_tokens=TRIAL_TOKENS)
        self._record_queue()

    def _fill(self, link: EngineLink) -> None:
        while len(self._in_engine) < self._max_in_engine and len(self._queue):
            message = self._queue.pop()
            assert message is not None
            self._send(link, self._requests[message.request_id])

    def _send(
        self, link: EngineLink, request: InFlightRequest, *, max_new_tokens: int | None = None
    ) -> None:
        request.stream.is_started = True
        self._in_engine[request.request.request_id] = request
        self.awaits_step = True
        link.send(request.send(max_new_tokens=max_new_tokens))

    def _blame(self, request: InFlightRequest) -> None:
        if request.request.request_id in self._suspects:
            logger.error("request %s crashed the engine twice", request.request.request_id)
            request.stream.fail(EngineCrashedError())
        else:
            self._suspects[request.request.request_id] = request

    def _acquit(self, request: InFlightRequest) -> None:
        """The request has passed the place where the engine died; it goes on with the others."""
        del self._suspects[request.request.request_id]
        del self._in_engine[request.request.request_id]
        self._queue.add(request.request, tenant=request.tenant, front=True)

    def _abort(self, request_id: str) -> None:
        if request_id in self._in_engine and self._link is not None:
            # Known or finished there, so that a step will come which answers it.
            self._link.send(AbortRequest(request_id=request_id))
        self._queue.remove(request_id)
        self._forget(request_id)
        self._record_queue()

    def _forget(self, request_id: str) -> None:
        for requests in (self._requests, self._in_engine, self._suspects):
            requests.pop(request_id, None)

    def _record_queue(self) -> None:
        self._metrics.record_queue(len(self._requests) - len(self._in_engine))
