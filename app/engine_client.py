"""The front end's view of the engine: requests go in, outputs come back. Knows no text.

The wire is one MessagePack message per ZeroMQ frame, between two DEALER sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio

from app.errors import EngineDownError, EngineFailedError, EngineStartingError, TandemError
from app.metrics import Metrics
from app.output_stream import OutputStream
from engine.messages import (
    AbortRequest,
    AddRequest,
    EngineDead,
    EngineMessage,
    EngineReady,
    EngineRequest,
    Shutdown,
    StepOutput,
)


class EngineClient(Protocol):
    """What the HTTP side asks of an engine."""

    def require_model(self) -> EngineReady:
        """What the engine said when it was ready.

        Raises EngineStartingError before that, EngineDownError when it has ended.
        """
        ...

    def generate(self, requests: Sequence[AddRequest]) -> OutputStream:
        """Start the requests; closing the stream aborts those that have not finished."""
        ...


class ZmqEngineClient:
    """The engine in another process, at the other end of a socket. A context manager."""

    def __init__(self, address: str, metrics: Metrics) -> None:
        self._address = address
        self._metrics = metrics
        self._model: EngineReady | None = None
        self._streams: dict[str, OutputStream] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineMessage)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # No limit: sending then never waits, so that an abort can be sent from any `finally`.
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._ready = asyncio.Event()
        self.failure: str | None = None

    def __enter__(self) -> ZmqEngineClient:
        self._socket.bind(self._address)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._context.term()

    def require_model(self) -> EngineReady:
        if self.failure is not None:
            raise EngineDownError(f"The engine is down: {self.failure}")
        if self._model is None:
            raise EngineStartingError
        return self._model

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self.failure is None

    async def run(self) -> str:
        """Hand out what the engine says, until it says that it is dead, and why."""
        self._metrics.record_engine(up=True, ready=False)
        while True:
            message = self._decoder.decode(await self._socket.recv())
            if isinstance(message, EngineReady):
                self._model = message
                self._metrics.record_engine(up=True, ready=True)
                self._ready.set()
            elif isinstance(message, StepOutput):
                self._hand_out(message)
            elif isinstance(message, EngineDead):
                return message.message

    async def wait_ready(self) -> EngineReady:
        await self._ready.wait()
        return self.require_model()

    def generate(self, requests: Sequence[AddRequest]) -> OutputStream:
        self.require_model()
        stream = OutputStream([request.request_id for request in requests], self._abort)
        for request in requests:
            self._streams[request.request_id] = stream
            self._send(request)
        return stream

    def fail(self, reason: str) -> None:
        """End every request in flight, and refuse the next ones."""
        self.failure = reason
        self._metrics.record_engine(up=False, ready=False)
        self.end_requests(EngineFailedError("The engine failed while it worked on this request."))

    def end_requests(self, error: TandemError) -> None:
        """Answer every request in flight with an error."""
        streams = set(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.fail(error)
        self._metrics.record_idle()

    def shutdown(self) -> None:
        self._send(Shutdown())

    def _hand_out(self, step: StepOutput) -> None:
        for output in step.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            stream.put(output)
            if output.finish_reason is not None:
                self._forget(output.request_id)
        self._metrics.record_step(step.stats)

    def _abort(self, request_id: str) -> None:
        self._send(AbortRequest(request_id=request_id))
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def _send(self, message: EngineRequest) -> None:
        self._socket.send(self._encoder.encode(message))
