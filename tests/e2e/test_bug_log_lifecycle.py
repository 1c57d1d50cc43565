"""Reports of clients that left, streams that mixed and servers that leaked, as checks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Server
from tests.e2e.open_request import OpenRequest
from tests.e2e.streamed_answer import StreamedAnswer

pytestmark = pytest.mark.usefixtures("unharmed")

ABORTED = 'tandem_requests_total{finish_reason="abort"}'
LONG = {"prompt": "Hello", "max_tokens": 3000, "ignore_eos": True, "stream": True}
# So many that reading them takes seconds.
LONG_PROMPT = [100 + i for i in range(3000)]
BODIES = {
    "stream": LONG,
    "whole": LONG | {"stream": False},
    "prompt": {"prompt": LONG_PROMPT, "max_tokens": 1},
}


@pytest.fixture(scope="module")
def small(model_dir: Path) -> Iterator[Server]:
    """Two slots, and little patience with readers."""
    assert model_dir
    server = Server.start("--max-num-seqs", "2", "--max-model-len", "4096", "--write-timeout", "2")
    yield server
    assert server.stop() == 0


def num_ended(metrics: dict[str, float]) -> float:
    return sum(metrics[name] for name in metrics if name.startswith("tandem_requests_total"))


def wait_for_load(server: Server, *, running: int, waiting: int = 0) -> None:
    server.wait_until(
        lambda metrics: (
            metrics["tandem_num_requests_running"] == running
            and metrics["tandem_num_requests_waiting"] == waiting
        )
    )


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_client_that_leaves_frees_its_slot(small, body):
    """vllm#9428, vllm#54947, llama.cpp#11720, sglang#36552 (92): at every stage."""
    before = small.metrics()
    with OpenRequest(small, **body):
        wait_for_load(small, running=1)
    after = small.wait_until_idle()
    assert after[ABORTED] == before[ABORTED] + 1
    assert num_ended(after) == num_ended(before) + 1


def test_a_client_that_leaves_after_two_chunks_frees_its_slot(small):
    """vllm#9428, sglang#36552 (92)."""
    before = small.metrics()
    with OpenRequest(small, **LONG) as request:
        request.read_chunks(2)
    after = small.wait_until_idle()
    assert after[ABORTED] == before[ABORTED] + 1
    assert 2 <= num_new_tokens(before, after) < LONG["max_tokens"]


def num_new_tokens(before: dict[str, float], after: dict[str, float]) -> float:
    name = "tandem_generation_tokens_total"
    return after[name] - before[name]


def test_a_client_that_leaves_the_queue_is_never_run(small):
    """vllm#9428 (92): while queued."""
    before = small.metrics()
    with OpenRequest(small, **LONG), OpenRequest(small, **LONG):
        wait_for_load(small, running=2)
        with OpenRequest(small, **BODIES["prompt"]):
            wait_for_load(small, running=2, waiting=1)
        wait_for_load(small, running=2)
    after = small.wait_until_idle()
    assert after[ABORTED] == before[ABORTED] + 3
    name = "tandem_prompt_tokens_total"
    assert after[name] - before[name] < len(LONG_PROMPT)


def test_many_clients_that_leave_at_once_are_all_counted(server):
    """vllm#31503, vllm#55634, vllm#22545 (94)."""
    before = server.metrics()
    with ExitStack() as clients:
        for _ in range(200):
            clients.enter_context(OpenRequest(server, **LONG))
        wait_for_load(server, running=8, waiting=192)
    after = server.wait_until_idle()
    assert after[ABORTED] == before[ABORTED] + 200
    assert num_ended(after) == num_ended(before) + 200


def test_a_client_that_leaves_while_the_engine_restarts_is_counted(small):
    """vllm#10430, vllm#6642, vllm#43031 (95): no counter goes down, and no stream dies of it."""
    expected = small.complete("The sea", max_tokens=40)["choices"][0]["text"]
    before = small.metrics()
    body = {"prompt": "The sea", "max_tokens": 40}
    with ThreadPoolExecutor(1) as threads, OpenRequest(small, **LONG) as request:
        request.read_chunks(2)
        other = threads.submit(StreamedAnswer.read, small, **body)
        wait_for_load(small, running=2)
        os.kill(small.engine_pid(), signal.SIGKILL)
        request.close()
        assert other.result().choices[0]["text"] == expected
    after = small.wait_until_idle()
    assert after[ABORTED] == before[ABORTED] + 1
    assert num_ended(after) == num_ended(before) + 2
    assert all(after[name] >= before[name] for name in before if "_total" in name)


def test_each_choice_of_a_stream_is_its_own(server):
    """vllm#4220, vllm#16863, vllm#52398 (98)."""
    body = {"n": 4, "temperature": 1, "seed": 1, "max_tokens": 12}
    stream = StreamedAnswer.read(server, "The sea", **body)
    assert stream.choices == server.complete("The sea", **body)["choices"]
    ends = [c["finish_reason"] for chunk in stream.chunks for c in chunk["choices"]]
    assert len(list(filter(None, ends))) == 4
    assert len({choice["text"] for choice in stream.choices}) > 1


def test_a_reader_that_stalls_costs_nobody_anything_and_is_let_go(small):
    """opencode#19423, opencti#13908 (100): megabytes that nobody reads, at once and then on."""
    before, memory_before = small.metrics(), resident_bytes(small.process.pid)
    flood = LONG | {"prompt": LONG_PROMPT[:2000], "echo": True, "logprobs": 20, "max_tokens": 2000}
    expected = small.complete("The sea", max_tokens=8)["choices"]
    with OpenRequest(small, **flood, receive_buffer=4096):
        small.wait_until(lambda metrics: num_new_tokens(before, metrics) > 8)
        assert small.complete("The sea", max_tokens=8)["choices"] == expected
        after = small.wait_until_idle()
        assert after[ABORTED] == before[ABORTED] + 1
        assert resident_bytes(small.process.pid) < memory_before + 100 * 2**20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_long_prompt_does_not_hold_up_a_stream(small):
    """FreeToken#483, exo#1908, vllm-tt-plugin#109 (101): a chunk of it, a step of the others."""
    unread_prompt = LONG_PROMPT[::-1]
    num_steps = len(unread_prompt) // 128
    with OpenRequest(small, **LONG, return_token_ids=True) as request:
        request.read_chunks(1)
        request.read_what_is_there()
        num_before = request.num_token_ids
        small.complete(unread_prompt, max_tokens=1)
        request.read_what_is_there()
        assert request.num_token_ids >= num_before + num_steps - 1


def test_a_stream_is_not_to_be_buffered_or_compressed(server):
    """llama.cpp#20872, llama-swap#236, dstack#4269 (107)."""
    body = {"prompt": "Hello", "max_tokens": 1, "stream": True}
    headers = {"Accept-Encoding": "gzip, deflate, br"}
    response = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert "Content-Encoding" not in response.headers


def test_each_of_many_requests_gets_its_own_answer(server):
    """vllm#56009 (109): 64 at once, of which each can say one token only, and 16 that are left."""

    def say(token_id: int) -> list[int]:
        body = {"logit_bias": {str(token_id): 100}, "max_tokens": 4, "return_token_ids": True}
        return server.complete(f"Repeat {token_id}", **body)["choices"][0]["token_ids"]

    with ExitStack() as leavers, ThreadPoolExecutor(64) as threads:
        for _ in range(16):
            leavers.enter_context(OpenRequest(server, **LONG))
        answers = threads.map(say, range(1000, 1064))
        leavers.close()
        assert list(answers) == [[token_id] * 4 for token_id in range(1000, 1064)]
