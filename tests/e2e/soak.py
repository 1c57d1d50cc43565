"""Mixed load for a bounded time, and what it left behind: answers, counts and memory.

Every answer is known beforehand, from the same request made alone. Knows no limits: those are the
test's.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tests.e2e.conftest import Server
from tests.e2e.streamed_answer import StreamedAnswer

Body = dict[str, Any]

NUM_WORKERS = 16
MAX_REQUESTS = 100_000
# Of 100 requests: 30 are left by their clients, 10 are read slowly.
KINDS = (
    ["whole"] * 30 + ["stream"] * 30 + ["left stream"] * 15 + ["left whole"] * 15 + ["slow"] * 10
)
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
BODIES: list[Body] = [
    {"prompt": "Once upon a time, in a town at the edge of the sea,", "max_tokens": 24},
    {"prompt": "one two three four five six seven. " * 8, "max_tokens": 32},
    {"prompt": "The capital of France is", "max_tokens": 8, "logprobs": 5, "echo": True},
    {"prompt": "A tale:", "max_tokens": 16, "temperature": 1, "seed": 4, "n": 3},
    {"prompt": ["Hello", "你好，世界。你好，"], "max_tokens": 12, "temperature": 0.7, "seed": 5},
    {"prompt": [500 + i for i in range(400)], "max_tokens": 6, "frequency_penalty": 0.5},
    {"prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9,", "max_tokens": 40, "stop": [" 15"]},
    {"prompt": "😀 🎉 😀 🎉 😀", "max_tokens": 20, "logprobs": 20, "n": 2},
    {
        "prompt": "Is it good? As JSON: ",
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    },
]


@dataclass(frozen=True)
class Sample:
    """Resident memory of both processes at one time."""

    time: float
    app_bytes: int
    engine_bytes: int


class Soak:
    """Counts what was asked and answered; samples the memory of both processes meanwhile."""

    def __init__(self, server: Server, seconds: float, seed: int = 0) -> None:
        self.requests: Counter[str] = Counter()
        self.wrong: list[tuple[str, Body, Any]] = []
        # Choices that the server certainly knew of, and those whose clients left before that.
        self.num_choices = 0
        self.num_uncertain_choices = 0
        self._server = server
        self._seconds = seconds
        self._seed = seed
        self._start = 0.0
        self._expected: list[list[Body]] = []
        self._samples: list[Sample] = []
        self._client = httpx.AsyncClient(base_url=server.url, timeout=120)
        small_buffer = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
        self._slow_client = httpx.AsyncClient(
            base_url=server.url,
            timeout=120,
            transport=httpx.AsyncHTTPTransport(socket_options=small_buffer),
        )

    async def run(self) -> None:
        async with self._client, self._slow_client:
            self._expected = [await self._whole(body) for body in BODIES]
            self.num_choices = sum(map(len, self._expected))
            self._start = time.monotonic()
            workers = [self._work(random.Random(self._seed + i)) for i in range(NUM_WORKERS)]
            await asyncio.gather(self._sample(), *workers)

    @property
    def memory_growth(self) -> tuple[float, float]:
        """Of front end and engine: the last third's median over that of the third before.

        The first third is the warm-up: it touches all KV slots, and the allocators find their size.
        """
        _, middle, last = self._thirds()
        growth = [
            median(getattr(sample, name) for sample in last)
            / median(getattr(sample, name) for sample in middle)
            - 1
            for name in ("app_bytes", "engine_bytes")
        ]
        return growth[0], growth[1]

    def table(self) -> str:
        last, (app, engine) = self._samples[-1], self.memory_growth
        most = self.num_choices + self.num_uncertain_choices
        return "\n".join(
            [
                *(f"{kind:<12} {count}" for kind, count in sorted(self.requests.items())),
                f"choices      {self.num_choices} to {most}",
                f"wrong        {len(self.wrong)}",
                f"front end    {last.app_bytes >> 20} MiB, {app:+.2%}",
                f"engine       {last.engine_bytes >> 20} MiB, {engine:+.2%}",
            ]
        )

    def _thirds(self) -> list[list[Sample]]:
        thirds: list[list[Sample]] = [[], [], []]
        for sample in self._samples:
            thirds[min(int(3 * (sample.time - self._start) / self._seconds), 2)].append(sample)
        return thirds

    @property
    def _is_over(self) -> bool:
        is_late = time.monotonic() > self._start + self._seconds
        return is_late or self.requests.total() >= MAX_REQUESTS

    async def _work(self, rng: random.Random) -> None:
        while not self._is_over:
            kind, index = rng.choice(KINDS), rng.randrange(len(BODIES))
            self.requests[kind] += 1
            try:
                await self._ask(kind, index, rng)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self.wrong.append((kind, BODIES[index], repr(error)))

    async def _ask(self, kind: str, index: int, rng: random.Random) -> None:
        body, expected = BODIES[index], self._expected[index]
        if kind == "left whole":
            answer = await self._left_whole(body, rng.uniform(0.02, 1))
            if answer is None:
                self.num_uncertain_choices += len(expected)
                return
        elif kind == "left stream":
            answer = await self._left_stream(body, rng.randrange(4))
        elif kind == "slow":
            answer = await self._slow(body, rng)
        else:
            answer = await (self._whole(body) if kind == "whole" else self._stream(body))
        self.num_choices += len(expected)
        if answer is not None and answer != expected:
            self.wrong.append((kind, body, answer))

    async def _whole(self, body: Body) -> list[Body]:
        response = await self._client.post("/v1/completions", json=defaults(body))
        return response.json()["choices"]

    async def _left_whole(self, body: Body, seconds: float) -> list[Body] | None:
        try:
            return await asyncio.wait_for(self._whole(body), seconds)
        except asyncio.TimeoutError:
            return None

    async def _stream(self, body: Body) -> list[Body]:
        return merged([chunk async for chunk in chunks(self._client, body)])

    async def _left_stream(self, body: Body, num_chunks: int) -> list[Body] | None:
        """The answer where it ended before its client left."""
        received: list[Body] = []
        async with aclosing(chunks(self._client, body)) as stream:
            async for chunk in stream:
                if len(received) == num_chunks:
                    return None
                received.append(chunk)
        return merged(received)

    async def _slow(self, body: Body, rng: random.Random) -> list[Body]:
        """Three times, some seconds go by without reading."""
        received: list[Body] = []
        stalls = {rng.randrange(10) for _ in range(3)}
        async for chunk in chunks(self._slow_client, body):
            received.append(chunk)
            if len(received) in stalls:
                await asyncio.sleep(rng.uniform(1, 3))
        return merged(received)

    async def _sample(self) -> None:
        app_pid, engine_pid = self._server.process.pid, self._server.engine_pid()
        while not self._is_over:
            sample = Sample(time.monotonic(), resident_bytes(app_pid), resident_bytes(engine_pid))
            self._samples.append(sample)
            await asyncio.sleep(0.25)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def defaults(body: Body) -> Body:
    return {"temperature": 0, **body}


async def chunks(client: httpx.AsyncClient, body: Body) -> AsyncGenerator[Body, None]:
    """Those of a stream; KeyError where one is an error."""
    body = {**defaults(body), "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def merged(received: list[Body]) -> list[Body]:
    return StreamedAnswer(received).choices
