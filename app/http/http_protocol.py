"""uvicorn's HTTP/1.1 connection, with bounds on size and time, and errors in OpenAI's envelope.

It knows bytes and timers, and nothing of requests' meaning.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.errors import HeadTooLargeError, InvalidRequestError, RequestTimeoutError, TandemError
from app.http.error_response import error_response
from app.settings import Settings

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
# What the kernel keeps for a slow reader; uvicorn waits when it is full.
SEND_BUFFER_BYTES = 256 * 1024
# How long a refused client may go on sending, so that it reads the answer in place of a reset.
LINGER_SECONDS = 2.0
# The application answers a slow body itself; the connection ends a little later.
ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a whole request to arrive, and for an answer to be read."""

    read: float
    write: float


def http_options(settings: Settings) -> dict[str, Any]:
    """What uvicorn.Config needs to serve with this protocol and to log with our format."""
    timeouts = Timeouts(settings.read_timeout, settings.write_timeout)
    return {
        "http": functools.partial(HttpProtocol, timeouts=timeouts),
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        # Its warnings are one line for each malformed request.
        "log_level": "debug" if settings.log_level == "debug" else "error",
    }


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, timeouts: Timeouts, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeouts = timeouts
        self._receive_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_message = False
        self._in_head = False
        self._refused = False
        self._head_error: HeadTooLargeError | None = None
        # Bytes since the parser last gave something to us: a head, trailers, or blank lines.
        self._num_silent_bytes = 0

    # What the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        # asyncio does this for sockets made with a protocol's number only. Without it each token
        # waits for the client's receipt of the one before, which it may put off for 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait_for_next_request()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._num_silent_bytes += len(data)
        self._in_message = True
        super().data_received(data)
        if self._num_silent_bytes > MAX_HEAD_BYTES and not self._refused:
            self._refuse(_head_too_large())
        self._watch_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_message = False
        self._watch_receiving()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    # What the parser tells

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = True
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come when the application has the headers already.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._head_error = _head_too_large()
            raise self._head_error
        super().on_headers_complete()
        self._in_head = False
        self._stop_receive_timer()
        self._num_silent_bytes = 0

    def on_chunk_header(self) -> None:
        self._num_silent_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._num_silent_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_message = False
        self._num_silent_bytes = 0
        if self.cycle.response_complete:
            self._wait_for_next_request()

    # What we answer without the application

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles the parser's error."""
        logger.debug(msg)
        self._refuse(
            self._head_error
            or InvalidRequestError("This is not a valid HTTP request.", code="malformed_http")
        )

    def _refuse(self, error: TandemError) -> None:
        logger.info("refused a connection: %s", error.code)
        self._refused = True
        self._in_message = False
        if self._may_answer():
            self._write_response(error)
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _may_answer(self) -> bool:
        """Nothing may be written into the middle of another answer."""
        if self.transport.is_closing() or self.pipeline:
            return False
        if self.cycle is None or self.cycle.response_complete:
            return True
        return not self._in_head and not self.cycle.response_started

    def _write_response(self, error: TandemError) -> None:
        response = error_response(error)
        headers = [*response.raw_headers, (b"connection", b"close")]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        body = bytes(response.body)
        self.transport.write(STATUS_LINE[error.status_code] + lines + b"\r\n" + body)

    # Timers

    def _wait_for_next_request(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _watch_receiving(self) -> None:
        """A request that has begun to arrive must be complete within a time."""
        if not self._in_message:
            self._stop_receive_timer()
        elif self._receive_timer is None:
            seconds = self._timeouts.read + (0 if self._in_head else ANSWER_SECONDS)
            self._receive_timer = self.loop.call_later(seconds, self._receive_timeout)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _receive_timeout(self) -> None:
        self._receive_timer = None
        if self.flow.read_paused:
            # It is the application that does not go on.
            self._watch_receiving()
        else:
            seconds = f"{self._timeouts.read:g} seconds"
            self._refuse(RequestTimeoutError(f"The request did not arrive within {seconds}."))

    def _start_write_timer(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._timeouts.write, self._write_timeout, size)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _write_timeout(self, size: int) -> None:
        """Nothing was read since the timer was set: the reader has stopped."""
        if self.transport.get_write_buffer_size() < size:
            self._start_write_timer()
        else:
            logger.info("a client left its answer unread for too long")
            self.transport.abort()


def _head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"The request line and headers are too large: at most {MAX_HEAD_BYTES} bytes and "
        f"{MAX_HEADERS} headers."
    )
