"""A minute of mixed load, or as long as TANDEM_SOAK_SECONDS says (`make soak`)."""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
from contextlib import closing
from urllib.parse import urlsplit

from tests.e2e.soak import Soak

SECONDS = float(os.environ.get("TANDEM_SOAK_SECONDS", "60"))
MAX_MEMORY_GROWTH = 0.02
IDLE_SECONDS = 60


async def test_a_soak_leaves_no_request_and_no_memory_behind(server, capsys):
    """ollama#18106, lmdeploy#1334 (110), vllm PR#18472, llm-d#1564, kserve#5446 (106).

    The latter with a connection that is idle all the while.
    """
    soak = Soak(server, SECONDS)
    before = server.metrics()
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)) as idle:
        await run_beside(soak, idle)
    after = server.wait_until_idle()
    with capsys.disabled():
        sys.stdout.write(f"\n{soak.table()}\n")
    assert soak.wrong == []
    names = [name for name in after if name.startswith("tandem_requests_total")]
    num_ended = sum(after[name] - before[name] for name in names)
    assert 0 <= num_ended - soak.num_choices <= soak.num_uncertain_choices
    error = 'tandem_requests_total{finish_reason="error"}'
    assert after[error] == before[error]
    assert max(soak.memory_growth) <= MAX_MEMORY_GROWTH


async def run_beside(soak: Soak, idle: http.client.HTTPConnection) -> None:
    """The connection stays open, for as long as load balancers leave one idle."""
    local_address = ask(idle)
    running = asyncio.create_task(soak.run())
    while not running.done():
        await asyncio.wait([running], timeout=IDLE_SECONDS)
        assert ask(idle) == local_address
    running.result()


def ask(connection: http.client.HTTPConnection) -> tuple[str, int]:
    """Use the connection; its own end says whether it is still the same one."""
    connection.request("GET", "/health/live")
    assert connection.getresponse().read()
    return connection.sock.getsockname()
