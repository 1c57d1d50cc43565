"""Servers that a benchmark can be pointed at."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from bench_server import BenchServer


@pytest.fixture
def bench_server() -> Iterator[BenchServer]:
    with BenchServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def dead_url() -> str:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
