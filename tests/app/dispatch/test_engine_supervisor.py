from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import scripted_engine
from scripted_engine import MAX_NUM_SEQS, continuation

from app.dispatch.engine_client import ZmqEngineClient
from app.dispatch.engine_process import EngineProcess
from app.dispatch.engine_supervisor import EngineSupervisor
from app.dispatch.output_stream import OutputStream
from app.dispatch.request_queue import RequestQueue
from app.errors import (
    EngineCrashedError,
    EngineDownError,
    EngineFailedError,
    EngineStartingError,
    ServerStoppingError,
)
from app.metrics import Metrics
from engine.config import EngineConfig
from engine.messages import AddRequest, SamplingParams

DEADLINE_SECONDS = 60
COMMAND = (sys.executable, scripted_engine.__file__)


@dataclass
class Supervised:
    """A client whose engine processes follow the script."""

    state: Path
    metrics: Metrics
    hang_seconds: float = 60.0
    max_crashes: int = 5
    vmstat: Path = Path("/proc/vmstat")
    processes: list[EngineProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        queue = RequestQueue(max_num_requests=1000, max_num_tokens=10_000)
        self.client = ZmqEngineClient(queue, self.metrics, max_queue_seconds=1000)

    def start(self) -> None:
        supervisor = EngineSupervisor(
            self.client,
            self.metrics,
            self._create_process,
            hang_seconds=self.hang_seconds,
            max_crashes=self.max_crashes,
        )
        self.task = asyncio.create_task(supervisor.run())

    async def start_and_wait(self) -> None:
        self.start()
        await self.client.wait_ready()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def flag(self, name: str) -> Path:
        """A file whose presence the next engine heeds."""
        (self.state / name).touch()
        return self.state / name

    def pid(self) -> int:
        return int((self.state / "pid").read_text())

    def added(self) -> list[str]:
        """What all engines were sent: the id of each request, and how many tokens it had."""
        return (self.state / "added").read_text().splitlines()

    def _create_process(self) -> EngineProcess:
        config = EngineConfig(model_path=str(self.state))
        self.processes.append(EngineProcess(config, command=COMMAND, vmstat=self.vmstat))
        return self.processes[-1]


@pytest.fixture
async def engine(tmp_path, metrics) -> AsyncIterator[Supervised]:
    supervised = Supervised(tmp_path, metrics)
    yield supervised
    await supervised.stop()


def request(request_id: str, *prompt: int, max_tokens: int = 100) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens),
    )


async def until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():  # noqa: ASYNC110 (other processes send no events)
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), DEADLINE_SECONDS)


async def read(stream: OutputStream, tokens: list[int] | None = None) -> list[int]:
    """All tokens of the one request of a stream, also as they come."""
    tokens = [] if tokens is None else tokens
    while True:
        outputs = await asyncio.wait_for(stream.get(), DEADLINE_SECONDS)
        if not outputs:
            return tokens
        for output in outputs:
            tokens += output.new_token_ids


def kill_engine(engine: Supervised, signal_number: int = signal.SIGKILL) -> None:
    os.kill(engine.pid(), signal_number)


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_twelve_kills_at_random_moments_change_no_token(engine, sample):
    """They come from outside, so that none counts as a crash."""
    engine.max_crashes = 0
    await engine.start_and_wait()
    rng = random.Random(0)
    requests = [request(f"r{i}", i, 7, i, max_tokens=rng.randrange(300, 900)) for i in range(10)]
    texts: list[list[int]] = [[] for _ in requests]
    reads = [
        asyncio.create_task(read(engine.client.generate([r]), text))
        for r, text in zip(requests, texts, strict=True)
    ]
    for number in range(12):
        until_tokens = sum(map(len, texts)) + rng.randrange(1, 200)
        await until(lambda enough=until_tokens: sum(map(len, texts)) >= enough)
        kill_engine(engine)
        await until(lambda number=number: sample("tandem_engine_restarts_total") > number)
        await until(lambda: engine.client.is_connected)
    await asyncio.gather(*reads)
    assert texts == [
        continuation(r.prompt_token_ids, r.sampling_params.max_tokens) for r in requests
    ]
    assert sample("tandem_num_requests_running") == sample("tandem_num_requests_waiting") == 0


async def test_a_request_that_comes_while_the_engine_starts_again_is_served(engine, sample):
    await engine.start_and_wait()
    slow = engine.flag("slow")
    kill_engine(engine)
    await until(lambda: not engine.client.is_connected)
    with pytest.raises(EngineStartingError):
        engine.client.require_ready()
    stream = engine.client.generate([request("a", 1, 2)])
    assert sample("tandem_num_requests_waiting") == 1
    slow.unlink()
    assert await read(stream) == continuation([1, 2], 100)


async def test_a_request_that_is_left_while_the_engine_starts_again_is_not_sent_to_it(
    engine, sample
):
    await engine.start_and_wait()
    streams = [engine.client.generate([request(name, 1, 2, max_tokens=9000)]) for name in "ab"]
    await streams[0].get()
    slow = engine.flag("slow")
    kill_engine(engine)
    await until(lambda: not engine.client.is_connected)
    streams[0].close()
    assert sample("tandem_num_requests_waiting") == 1
    slow.unlink()
    await until(lambda: len(engine.added()) == 3)
    assert [line.split()[0] for line in engine.added()] == ["a", "b", "b"]
    streams[1].close()
    await until(lambda: sample("tandem_num_requests_running") == 0)
    assert sample("tandem_num_requests_waiting") == 0


@pytest.mark.parametrize("deed", [50, 51, 52, 53], ids=["abort", "exit", "exception", "hang"])
async def test_a_request_that_ends_the_engine_twice_gets_an_error_and_the_others_their_text(
    engine, sample, deed
):
    engine.hang_seconds = 1.5 if deed == 53 else 60
    engine.max_crashes = 1
    await engine.start_and_wait()
    others = [engine.client.generate([request(f"r{i}", i, 3, max_tokens=200)]) for i in range(6)]
    poisoned = engine.client.generate([request("poison", deed, 20)])
    read_others = [asyncio.create_task(read(stream)) for stream in others]
    text: list[int] = []
    with pytest.raises(EngineCrashedError) as failed:
        await read(poisoned, text)
    assert (failed.value.status_code, failed.value.code) == (500, "engine_crashed_by_request")
    assert text == continuation([deed, 20], 20)
    assert await asyncio.gather(*read_others) == [continuation([i, 3], 200) for i in range(6)]
    assert sample("tandem_engine_restarts_total") == 2
    assert await read(engine.client.generate([request("next", 5, 5)])) == continuation([5, 5], 100)


async def test_two_poisoned_requests_in_one_batch_are_told_apart_from_the_innocent(engine):
    await engine.start_and_wait()
    poisoned = [engine.client.generate([request(f"p{i}", 50, 20)]) for i in range(2)]
    others = [engine.client.generate([request(f"r{i}", i, 3, max_tokens=99)]) for i in range(2)]
    for stream in poisoned:
        with pytest.raises(EngineCrashedError):
            await read(stream)
    assert [await read(stream) for stream in others] == [continuation([i, 3], 99) for i in (0, 1)]


async def test_poison_in_one_of_several_choices_ends_the_call_once(engine, sample):
    await engine.start_and_wait()
    stream = engine.client.generate([request("a-0", 1, 1), request("a-1", 50, 20)])
    with pytest.raises(EngineCrashedError):
        await read(stream)
    assert await read(engine.client.generate([request("b", 2, 2)])) == continuation([2, 2], 100)
    assert sample("tandem_num_requests_running") == sample("tandem_num_requests_waiting") == 0


async def test_an_engine_that_stands_still_is_replaced(engine, sample):
    engine.hang_seconds = 1.5
    await engine.start_and_wait()
    streams = [engine.client.generate([request(name, 1, 2, max_tokens=300)]) for name in "ab"]
    await streams[0].get()
    kill_engine(engine, signal.SIGSTOP)
    for stream in streams:
        assert (await read(stream))[-1] == continuation([1, 2], 300)[-1]
    assert sample("tandem_engine_restarts_total") == 1


async def test_a_hang_is_noticed_also_when_its_victims_have_left(engine, sample):
    """Impatient clients must not keep a dead engine in place."""
    engine.hang_seconds = 1.5
    await engine.start_and_wait()
    stream = engine.client.generate([request("a", 1, 2, max_tokens=9000)])
    await stream.get()
    kill_engine(engine, signal.SIGSTOP)
    stream.close()
    await until(lambda: sample("tandem_engine_restarts_total") == 1)


async def test_neither_idleness_nor_a_long_load_is_a_hang(engine, sample):
    engine.hang_seconds = 0.2
    slow = engine.flag("slow")
    engine.start()
    await asyncio.sleep(5 * engine.hang_seconds)
    slow.unlink()
    await engine.client.wait_ready()
    await asyncio.sleep(5 * engine.hang_seconds)
    assert len(engine.processes) == 1
    assert sample("tandem_engine_ready") == 1


async def test_an_engine_that_cannot_start_at_first_says_why(engine):
    engine.flag("broken")
    engine.start()
    with pytest.raises(EngineFailedError, match="the model is broken"):
        await engine.task


async def test_too_many_crashes_end_every_request_with_an_error_and_the_service(engine, sample):
    engine.max_crashes = 1
    await engine.start_and_wait()
    streams = [engine.client.generate([request(f"r{i}", 1, 1)]) for i in range(2 * MAX_NUM_SEQS)]
    engine.flag("broken")
    kill_engine(engine)
    await engine.task
    for stream in streams:
        with pytest.raises(EngineFailedError):
            await read(stream)
    for ask in (
        engine.client.require_alive,
        engine.client.require_ready,
        lambda: engine.client.generate([request("next", 1, 1)]),
    ):
        with pytest.raises(EngineDownError, match="the model is broken"):
            ask()
    assert sample("tandem_engine_up") == sample("tandem_num_requests_waiting") == 0


async def test_running_requests_are_served_to_their_ends_when_the_engine_dies_during_a_drain(
    engine,
):
    await engine.start_and_wait()
    stream = engine.client.generate([request("a", 1, 2, max_tokens=300)])
    first = [token for output in await stream.get() for token in output.new_token_ids]
    engine.client.stop_accepting()
    kill_engine(engine)
    assert await read(stream, first) == continuation([1, 2], 300)


async def test_requests_can_be_ended_while_there_is_no_engine(engine, sample):
    await engine.start_and_wait()
    stream = engine.client.generate([request("a", 1, 2, max_tokens=9000)])
    await stream.get()
    engine.flag("slow")
    kill_engine(engine)
    await until(lambda: not engine.client.is_connected)
    engine.client.end_requests(ServerStoppingError())
    with pytest.raises(ServerStoppingError):
        await read(stream)
    assert sample("tandem_num_requests_waiting") == 0


@pytest.mark.parametrize("moment", ["loading", "serving", "starting again"])
async def test_no_process_and_no_folder_is_left_behind(engine, moment):
    slow = engine.flag("slow")
    engine.start()
    await until(lambda: (engine.state / "pid").exists())
    if moment != "loading":
        slow.unlink()
        await engine.client.wait_ready()
    if moment == "starting again":
        old_pid = engine.pid()
        engine.flag("slow")
        kill_engine(engine)
        await until(lambda: engine.pid() != old_pid)
    await engine.stop()
    assert not is_running(engine.pid())
    assert not any(process.folder.exists() for process in engine.processes)


async def test_a_kill_for_lack_of_memory_counts_as_a_crash(engine, tmp_path):
    engine.max_crashes = 0
    engine.vmstat = tmp_path / "vmstat"
    engine.vmstat.write_text("nr_free_pages 7\noom_kill 3\n")
    await engine.start_and_wait()
    engine.vmstat.write_text("nr_free_pages 7\noom_kill 4\n")
    kill_engine(engine)
    await engine.task
    with pytest.raises(EngineDownError):
        engine.client.require_alive()
