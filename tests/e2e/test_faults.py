"""Engines that are killed under load, and clients that notice nothing but a pause."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest

from tests.e2e.conftest import START_SECONDS, Server
from tests.e2e.streamed_answer import StreamedAnswer

NUM_KILLS = 20
# Chunks between a new engine and its end, at most: 20 times this are fewer than come.
MAX_CHUNKS = 16

STORY = "Once upon a time, in a town at the edge of the sea,"
JSON_LINES = '{"id": 7, "status": "ok"}\n' * 4
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
STREAMS = [
    {"prompt": STORY},
    {"prompt": STORY, "speculative": False},
    {"prompt": STORY, "temperature": 0.8, "seed": 1},
    {"prompt": STORY, "temperature": 1.0, "seed": 2, "speculative": False, "logprobs": 3},
    {"prompt": STORY, "logprobs": 0},
    {"prompt": STORY, "echo": True, "logprobs": 2},
    {"prompt": STORY, "temperature": 1, "seed": 3, "n": 3, "max_tokens": 30},
    {"prompt": STORY, "stop": [" a small v"], "speculative": False},
    {"prompt": STORY, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"prompt": STORY, "repetition_penalty": 1.2, "speculative": False},
    {"prompt": STORY, "logit_bias": {"28": -5, "260": 2.5}, "temperature": 0.8, "seed": 4},
    {"prompt": STORY * 20, "temperature": 0.7, "seed": 5, "top_p": 0.9},
    {"prompt": [STORY, "The sea"], "max_tokens": 30, "speculative": False},
    {"prompt": JSON_LINES},
    {"prompt": JSON_LINES, "speculative": {"num_speculative_tokens": 4}, "logprobs": 1},
    {"prompt": "Name:", "response_format": {"type": "json_schema", "json_schema": {
        "name": "person", "schema": SCHEMA}}, "ignore_eos": False},
]  # fmt: skip
WHOLES = [
    {"prompt": STORY, "logprobs": 2, "prompt_logprobs": 1},
    {"prompt": STORY, "temperature": 1, "seed": 6, "n": 2},
    {"prompt": STORY, "echo": True, "logprobs": 1, "max_tokens": 30},
    {"prompt": JSON_LINES, "return_token_ids": True},
]


@pytest.fixture(scope="module")
def server(model_dir) -> Iterator[Server]:
    """It would give up at the first crash."""
    assert model_dir
    running = Server.start("--max-engine-crashes", "0", "--sse-keep-alive-seconds", "1000")
    yield running
    assert running.stop() == 0


@dataclass
class Load:
    """All requests at once, and how far they are."""

    server: Server
    num_chunks: int = 0
    answers: list[Future[dict]] = field(default_factory=list)

    def start(self, pool: ThreadPoolExecutor) -> None:
        self.answers += [pool.submit(self._stream, body) for body in STREAMS]
        self.answers += [pool.submit(self._whole, body) for body in WHOLES]

    def _stream(self, body: dict) -> dict:
        events = []
        with httpx.stream(
            "POST", self._url, json=with_defaults(body) | {"stream": True}, timeout=None
        ) as response:
            for line in filter(None, response.iter_lines()):
                self.num_chunks += 1
                events.append(line.removeprefix("data: "))
        assert events.pop() == "[DONE]"
        return told(StreamedAnswer([json.loads(event) for event in events]).choices)

    def _whole(self, body: dict) -> dict:
        answer = httpx.post(self._url, json=with_defaults(body), timeout=None).json()
        return told(answer["choices"]) | {"tokens": answer["usage"]["completion_tokens"]}

    @property
    def _url(self) -> str:
        return f"{self.server.url}/v1/completions"

    @property
    def is_done(self) -> bool:
        return all(answer.done() for answer in self.answers)


def with_defaults(body: dict) -> dict:
    return {"temperature": 0, "max_tokens": 40, "ignore_eos": True, **body}


def told(choices: list[dict]) -> dict:
    """What must be the same; an error in its place has no choices."""
    assert choices
    assert all(choice["finish_reason"] in ("stop", "length") for choice in choices)
    return {"choices": choices}


def kill_engine_when(load: Load, num_chunks: int) -> bool:
    """Kill the engine as soon as the streams have come so far; False if they end before."""
    while load.num_chunks < num_chunks:
        if load.is_done:
            return False
        time.sleep(0.001)
    pid = load.server.engine_pid()
    os.kill(pid, signal.SIGKILL)
    wait_for_other_engine(load.server, pid)
    return True


def wait_for_other_engine(server: Server, old_pid: int) -> None:
    """Meanwhile the server is alive and not ready."""
    assert status(server, "live") == 200
    deadline = time.monotonic() + START_SECONDS
    statuses = []
    while not statuses or statuses[-1] != 200 or engine_pid(server) in (None, old_pid):
        assert time.monotonic() < deadline, statuses
        time.sleep(0.02)
        statuses.append(status(server, "ready"))
    assert 503 in statuses
    assert status(server, "live") == 200


def engine_pid(server: Server) -> int | None:
    try:
        return server.engine_pid()
    except (ValueError, FileNotFoundError):
        return None


def status(server: Server, probe: str) -> int:
    return httpx.get(f"{server.url}/health/{probe}", timeout=START_SECONDS).status_code


def test_twenty_kills_under_load_lose_no_request_and_change_no_byte(server):
    with ThreadPoolExecutor(len(STREAMS) + len(WHOLES)) as pool:
        undisturbed = Load(server)
        undisturbed.start(pool)
        expected = [answer.result() for answer in undisturbed.answers]
        disturbed = Load(server)
        disturbed.start(pool)
        rng = random.Random(0)
        kills = [
            kill_engine_when(disturbed, disturbed.num_chunks + rng.randrange(1, MAX_CHUNKS))
            for _ in range(NUM_KILLS)
        ]
        answers = [answer.result() for answer in disturbed.answers]
    assert answers == expected
    assert all(kills)
    metrics = server.wait_until_idle()
    assert metrics["tandem_engine_restarts_total"] == NUM_KILLS
    assert metrics['tandem_requests_total{finish_reason="error"}'] == 0
    assert metrics['tandem_requests_total{finish_reason="abort"}'] == 0
