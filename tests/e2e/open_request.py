"""A completion request on a connection of its own, which is read and closed byte by byte.

It can be left at any moment, also before the server has answered.
"""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any

from tests.e2e.conftest import START_SECONDS, Server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def without_framing(response: bytes) -> bytes:
    """The body of a response in HTTP's chunked encoding, as far as it is there."""
    _, _, framed = response.partition(b"\r\n\r\n")
    body = b""
    while b"\r\n" in framed:
        size, _, rest = framed.partition(b"\r\n")
        num_bytes = int(size, 16)
        body += rest[:num_bytes]
        framed = rest[num_bytes + 2 :]
    return body


class OpenRequest:
    """A context manager that closes the connection at its end."""

    def __init__(self, server: Server, *, receive_buffer: int | None = None, **body: object):
        host, port = server.url.removeprefix("http://").split(":")
        content = json.dumps({"max_tokens": 16, "temperature": 0, **body}).encode()
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(START_SECONDS)
        self._socket.connect((host, int(port)))
        self._socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: tandem\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
        )
        self.received = b""

    def __enter__(self) -> OpenRequest:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Of the stream, as far as it was read."""
        *whole_events, _ = without_framing(self.received).split(b"\n\n")
        data = [
            event.removeprefix(b"data: ") for event in whole_events if event.startswith(b"data")
        ]
        return [json.loads(each) for each in data if each != b"[DONE]"]

    @property
    def num_chunks(self) -> int:
        return len(self.chunks)

    @property
    def num_token_ids(self) -> int:
        """They must have been asked for."""
        return sum(len(choice["token_ids"]) for chunk in self.chunks for choice in chunk["choices"])

    def read_chunks(self, num_chunks: int) -> None:
        """Read until so many chunks of the stream are there."""
        while self.num_chunks < num_chunks:
            assert self._read(), self.received

    def read_to_the_end(self) -> None:
        while self._read():
            pass

    def read_what_is_there(self) -> None:
        self._socket.setblocking(False)
        try:
            while self._read():
                pass
        except BlockingIOError:
            self._socket.settimeout(START_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        piece = self._socket.recv(2**16)
        self.received += piece
        return piece
