"""An engine process that is killed, and the one that comes in its place."""

from __future__ import annotations

import os
import signal
import time

import httpx

from tests.e2e.conftest import START_SECONDS, Server


def kill_engine(server: Server) -> None:
    """Kill it without a word, and wait until another one takes requests."""
    killed = server.engine_pid()
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + START_SECONDS
    while not is_replaced(server, killed):
        assert time.monotonic() < deadline, "there is no new engine"
        time.sleep(0.05)


def is_replaced(server: Server, engine_pid: int) -> bool:
    try:
        is_new = server.engine_pid() != engine_pid
    except (ValueError, FileNotFoundError):
        return False
    return is_new and httpx.get(f"{server.url}/health/ready").status_code == 200
