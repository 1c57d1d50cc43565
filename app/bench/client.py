"""Streams completions from a server, with nothing but the standard library.

It may be used by several threads, and reads each answer as it comes; every request has a connection
of its own. It does not know what is compared.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from app.bench.answer import Answer, AnswerReader
from app.bench.bench_error import BenchError, ServerGoneError
from app.bench.chunk import Chunk

CONNECT_SECONDS = 10
# A stream that waits says so every 15 seconds.
SILENT_SECONDS = 300
DATA = b"data: "
DONE = b"[DONE]"


class Client:
    """Leaving its block ends the requests that still run, which then fail in their threads."""

    def __init__(self, url: str, api_key: str = "") -> None:
        parts = _split(url)
        self.url = url
        self._host = parts.hostname or ""
        self._port = parts.port
        self._is_encrypted = parts.scheme == "https"
        self._path = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%")
        self._headers = {"Content-Type": "application/json"}
        if not (api_key.isascii() and api_key.isprintable()):
            raise BenchError("the API key has characters that cannot be sent")
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_closed = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def model_name(self) -> str:
        """Also shows that the server is there, and lets us in."""
        with self._response("GET", "/v1/models") as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise BenchError(f"{self.url} does not list its model") from error

    def complete(self, body: Mapping[str, Any]) -> Answer:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {**body, "stream": True, "stream_options": options}
        reader = AnswerReader(time.perf_counter())
        with self._response("POST", "/v1/completions", json.dumps(body).encode()) as response:
            for data in _events(response):
                if data == DONE:
                    return reader.finish(time.perf_counter())
                now = time.perf_counter()
                reader.add(msgspec.json.decode(data, type=Chunk), now)
        raise ServerGoneError(f"{self.url} ended a stream before its end")

    @contextmanager
    def _response(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        with self._connected() as connection:
            try:
                connection.request(method, f"{self._path}{path}", body, self._headers)
                # It may hold the socket, which the connection then no longer knows.
                with connection.getresponse() as response:
                    if response.status != http.client.OK:
                        raise BenchError(self._refusal(path, response))
                    yield response
            except msgspec.DecodeError as error:
                problem = f"{self.url} sent what cannot be read: {error}"
                raise BenchError(f"{problem}; is this a Tandem server?") from error
            except (OSError, http.client.HTTPException) as error:
                raise ServerGoneError(f"{self.url} went away: {_reason(error)}") from error

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._is_encrypted else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            raise ServerGoneError(f"cannot reach {self.url}: {_reason(error)}") from error
        # http.client forgets it as soon as it knows that the server will close it.
        sock: socket.socket = connection.sock
        sock.settimeout(SILENT_SECONDS)
        try:
            with self._lock:
                if self._is_closed:
                    raise BenchError("the benchmark has ended")
                self._sockets.add(sock)
            yield connection
        finally:
            with self._lock:
                self._sockets.discard(sock)
            connection.close()

    def _refusal(self, path: str, response: http.client.HTTPResponse) -> str:
        """The server's own words, where it has any."""
        try:
            message = json.load(response)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = response.reason
        hint = "; give a key with --api-key" if response.status == 401 else ""
        return f"{self.url} answered {response.status} to {path}: {message}{hint}"


def _split(url: str) -> SplitResult:
    """BenchError unless it can be connected to."""
    with suppress(ValueError):
        parts = urlsplit(url)
        # Raise where there is no such name, or no such port.
        host, _ = (parts.hostname or "").encode("idna"), parts.port
        if parts.scheme in ("http", "https") and host:
            return parts
    raise BenchError(f"{url!r} is not a URL such as http://127.0.0.1:8000")


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    for line in response:
        if line.startswith(DATA):
            yield line[len(DATA) :].rstrip()


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "an answer broke off"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
