"""The front end's end of the socket to one engine process. Knows no requests.

The wire is one MessagePack message per ZeroMQ frame, between two DEALER sockets. Each engine
process has a socket of its own, so that nothing of a dead one comes from the next.
"""

from __future__ import annotations

from types import TracebackType

import msgspec
import zmq
import zmq.asyncio

from engine.messages import EngineMessage, EngineRequest


class EngineLink:
    """A context manager, within which the engine may connect."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineMessage)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # No limit: sending then never waits, so that an abort can be sent from any `finally`.
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)

    def __enter__(self) -> EngineLink:
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

    def send(self, message: EngineRequest) -> None:
        self._socket.send(self._encoder.encode(message))

    async def receive(self) -> EngineMessage:
        return self._decoder.decode(await self._socket.recv())
