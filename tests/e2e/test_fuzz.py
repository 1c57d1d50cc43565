"""Tens of thousands of wrong requests, byte by byte, over raw sockets to a real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutations import Mutator

from tests.e2e.conftest import Server

NUM_BODIES = 16_000
NUM_HEADS = 4_000
NUM_PATHS = 10_000
NUM_WORKERS = 8
PROMPT = "The capital of France is"
ANSWER_SECONDS = 60
# An incomplete head is one that the server has to wait for.
INCOMPLETE_SECONDS = 0.2
MAX_GROWTH_BYTES = 8 * 2**20
LAST_REQUEST = b"GET /health/live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@pytest.fixture(scope="module")
def fuzzed_server(model_dir: Path) -> Iterator[Server]:
    assert model_dir
    running = Server.start(
        # Whatever is no longer wrong must not take long.
        *("--max-model-len", "64", "--log-level", "error", "--max-body-bytes", "2048")
    )
    yield running
    assert running.stop() == 0


def resident_bytes(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


class Connection:
    """Kept alive as long as the server keeps it."""

    def __init__(self, server: Server) -> None:
        self._address = address(server)
        self._writer: asyncio.StreamWriter | None = None

    async def status(self, data: bytes) -> int:
        """The status of the answer to a complete request."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(data)
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
        if b"text/event-stream" in head:
            await self._reader.readuntil(b"0\r\n\r\n")
        else:
            length = re.findall(rb"content-length: (\d+)", head)[0]
            await self._reader.readexactly(int(length))
        if b"connection: close" in head:
            self.close()
        return int(STATUS.findall(head)[0])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def in_parallel(work: Iterator[bytes], server: Server) -> Counter[int]:
    statuses: Counter[int] = Counter()

    async def worker() -> None:
        connection = Connection(server)
        for data in work:
            statuses[await connection.status(data)] += 1
        connection.close()

    await asyncio.gather(*(worker() for _ in range(NUM_WORKERS)))
    return statuses


async def head_statuses(server: Server, data: bytes) -> list[int]:
    """What comes back for bytes that may be a request, several, or a part of one."""
    reader, writer = await asyncio.open_connection(*address(server))
    answer = b""
    with contextlib.suppress(ConnectionError):
        writer.write(data + LAST_REQUEST)
        with contextlib.suppress(asyncio.TimeoutError):
            while more := await asyncio.wait_for(reader.read(65536), INCOMPLETE_SECONDS):
                answer += more
    writer.close()
    return [int(status) for status in STATUS.findall(answer)]


async def heads_in_parallel(server: Server, mutator: Mutator, num_heads: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    work = iter(range(num_heads))

    async def worker() -> None:
        for _ in work:
            statuses.update(await head_statuses(server, mutator.head_request()))

    await asyncio.gather(*(worker() for _ in range(2 * NUM_WORKERS)))
    return statuses


async def fuzz(server: Server, seed: int, share: float) -> Counter[int]:
    mutator = Mutator(seed)
    bodies = (mutator.body_request() for _ in range(int(NUM_BODIES * share)))
    statuses = await in_parallel(bodies, server)
    return statuses + await heads_in_parallel(server, mutator, int(NUM_HEADS * share))


async def test_wrong_bytes_get_client_errors_and_leave_no_trace(fuzzed_server):
    server = fuzzed_server
    expected = server.complete(PROMPT)["choices"]
    warm_up = await fuzz(server, 0, 0.2)
    before = resident_bytes(server.process.pid)
    statuses = warm_up + await fuzz(server, 1, 0.8)
    growth = resident_bytes(server.process.pid) - before
    assert statuses.total() >= NUM_BODIES + NUM_HEADS / 2
    assert not [status for status in statuses if status >= 500], statuses
    assert {200, 400, 404, 405, 413, 415, 431} <= statuses.keys()
    assert growth < MAX_GROWTH_BYTES
    assert server.complete(PROMPT)["choices"] == expected


async def test_unknown_paths_add_no_series(fuzzed_server):
    """sglang#31193, dstack#3455, artifact-keeper#2220."""
    mutator = Mutator(2)
    before = fuzzed_server.metrics().keys()
    paths = (b"GET " + mutator.path() + b" HTTP/1.1\r\nHost: t\r\n\r\n" for _ in range(NUM_PATHS))
    assert await in_parallel(paths, fuzzed_server) == {404: NUM_PATHS}
    assert fuzzed_server.metrics().keys() == before
