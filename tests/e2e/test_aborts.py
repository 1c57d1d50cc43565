"""Clients that go away at any moment leave nothing behind."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from tests.e2e.conftest import Server

NUM_REQUESTS = 200
NUM_AT_ONCE = 24
GAUGES = (
    "tandem_num_requests_running",
    "tandem_num_requests_waiting",
    "tandem_slots_in_use_ratio",
    "tandem_kv_cache_usage_ratio",
)


async def use(client: httpx.AsyncClient, index: int, rng: random.Random) -> int | None:
    """One request; a third of the readers leave after a random number of chunks, some at once.

    Returns its completion tokens, or None if it was left.
    """
    body = {
        "prompt": f"Repeat the number {index}: " + f"{index}, " * rng.randrange(1, 20),
        "max_tokens": rng.randrange(1, 24),
        "temperature": rng.choice([0, 0.8]),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    num_lines = rng.choice([0, 0, 1, 2, 5]) if index % 3 == 0 else None
    usage = None
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if num_lines == 0:
                return None
            num_lines = num_lines and num_lines - 1
            if '"completion_tokens"' in line:
                usage = httpx.Response(200, text=line[6:]).json()["usage"]
    return usage["completion_tokens"] if num_lines is None and usage else None


async def leave_while_waiting(client: httpx.AsyncClient, seconds: float) -> None:
    """A request without a stream whose client loses patience."""
    body = {"prompt": "Hello " * 200, "max_tokens": 500, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/v1/completions", json=body, timeout=seconds)


def complete_until_idle(server: Server) -> tuple[list[dict], dict[str, float]]:
    """Ask until the gauges are 0 behind an answer, as they must be once all aborts arrived."""
    answers = []
    for _ in range(100):
        answers.append(server.complete("The capital of France is")["choices"])
        metrics = server.metrics()
        if not any(metrics[name] for name in GAUGES):
            break
    return answers, {name: metrics[name] for name in GAUGES}


async def test_slots_counters_and_streams_return_to_zero_after_many_aborts(server):
    before = server.metrics()
    expected = server.complete("The capital of France is")["choices"]
    rng = random.Random(0)
    at_once = asyncio.Semaphore(NUM_AT_ONCE)

    async def limited(index: int) -> int | None:
        async with at_once:
            return await use(client, index, random.Random(rng.random()))

    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
        used = await asyncio.gather(*map(limited, range(NUM_REQUESTS)))
        await asyncio.gather(*(leave_while_waiting(client, 0.1 * (i + 1)) for i in range(10)))

    answers, gauges = await asyncio.to_thread(complete_until_idle, server)
    assert gauges == dict.fromkeys(GAUGES, 0.0)
    assert answers == [expected] * len(answers)
    after = server.metrics()
    ended = {
        name: after[name] - before[name] for name in after if name.startswith("tandem_requests_t")
    }
    assert sum(ended.values()) == NUM_REQUESTS + 10 + 1 + len(answers)
    assert ended['tandem_requests_total{finish_reason="error"}'] == 0
    assert ended['tandem_requests_total{finish_reason="abort"}'] >= 10
    known_tokens = sum(tokens for tokens in used if tokens is not None)
    assert after["tandem_generation_tokens_total"] - before["tandem_generation_tokens_total"] >= (
        known_tokens
    )
