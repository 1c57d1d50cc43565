from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import zmq
import zmq.asyncio

from app.engine_client import ZmqEngineClient
from app.errors import EngineDownError, EngineFailedError, EngineStartingError, ServerStoppingError
from engine.messages import (
    AbortRequest,
    AddRequest,
    EngineDead,
    EngineMessage,
    EngineReady,
    EngineRequest,
    RequestOutput,
    SamplingParams,
    StepOutput,
    StepStats,
)

READY = EngineReady(
    vocab_size=10,
    max_model_len=64,
    max_num_seqs=8,
    num_speculative_tokens=4,
    speculative_method="suffix",
    device="cpu",
    dtype="float32",
    eos_token_ids=[0],
    load_seconds=1.0,
)
RUNNING = StepStats(
    phase="decode",
    step_seconds=0.5,
    draft_seconds=0.0,
    num_rows=1,
    num_tokens=1,
    num_running=1,
    num_waiting=0,
    kv_cache_usage_ratio=0.5,
)
IDLE = StepStats(num_running=0, num_waiting=0, kv_cache_usage_ratio=0.0)

pytestmark = pytest.mark.usefixtures("running")


class Peer:
    """The engine's end of the socket."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket

    async def say(self, message: EngineMessage) -> None:
        await self._socket.send(msgspec.msgpack.encode(message))

    async def hear(self) -> EngineRequest:
        return msgspec.msgpack.decode(await self._socket.recv(), type=EngineRequest)


def request(request_id: str) -> AddRequest:
    params = SamplingParams(max_tokens=4)
    return AddRequest(request_id=request_id, prompt_token_ids=[1], sampling_params=params)


@pytest.fixture
async def client(tmp_path, metrics) -> AsyncIterator[ZmqEngineClient]:
    with ZmqEngineClient(f"ipc://{tmp_path}/engine.sock", metrics) as client:
        yield client


@pytest.fixture
async def peer(tmp_path) -> AsyncIterator[Peer]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"ipc://{tmp_path}/engine.sock")
        yield Peer(socket)


@pytest.fixture
async def running(client) -> AsyncIterator[asyncio.Task[str]]:
    task = asyncio.create_task(client.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_there_is_no_model_until_the_engine_is_ready(client, peer, sample):
    with pytest.raises(EngineStartingError):
        client.require_model()
    await peer.say(READY)
    assert await client.wait_ready() == client.require_model() == READY
    assert sample("tandem_engine_ready") == 1


async def test_requests_go_out_and_their_outputs_come_back(client, peer):
    await peer.say(READY)
    await client.wait_ready()
    stream = client.generate([request("a"), request("b")])
    assert [await peer.hear(), await peer.hear()] == [request("a"), request("b")]
    outputs = [
        RequestOutput(request_id="b", new_token_ids=[7], finish_reason="stop"),
        RequestOutput(request_id="a", new_token_ids=[8], finish_reason="stop"),
    ]
    await peer.say(StepOutput(outputs=outputs, stats=RUNNING))
    assert await stream.get() == outputs
    assert await stream.get() == []


async def test_closing_a_stream_aborts_what_has_not_finished(client, peer):
    await peer.say(READY)
    await client.wait_ready()
    stream = client.generate([request("a"), request("b")])
    done = RequestOutput(request_id="a", finish_reason="stop")
    await peer.say(StepOutput(outputs=[done], stats=RUNNING))
    await stream.get()
    stream.close()
    heard = [await peer.hear() for _ in range(3)]
    assert heard[2] == AbortRequest(request_id="b")


async def test_gauges_follow_an_engine_that_only_answers_an_abort(client, peer, sample):
    await peer.say(READY)
    await client.wait_ready()
    stream = client.generate([request("a")])
    await peer.say(StepOutput(outputs=[RequestOutput(request_id="a")], stats=RUNNING))
    await stream.get()
    assert sample("tandem_num_requests_running") == 1
    done = RequestOutput(request_id="a", finish_reason="abort")
    await peer.say(StepOutput(outputs=[done], stats=IDLE))
    await stream.get()
    assert sample("tandem_num_requests_running") == 0


async def test_a_slow_reader_finds_all_that_came_at_once(client, peer):
    await peer.say(READY)
    await client.wait_ready()
    slow, fast = client.generate([request("slow")]), client.generate([request("fast")])
    outputs = [RequestOutput(request_id="slow", new_token_ids=[n]) for n in range(3)]
    for output in outputs:
        await peer.say(StepOutput(outputs=[output], stats=RUNNING))
    await peer.say(StepOutput(outputs=[RequestOutput(request_id="fast")], stats=RUNNING))
    await fast.get()
    assert await slow.get() == outputs


async def test_silence_is_an_empty_answer_after_the_timeout(client, peer):
    await peer.say(READY)
    await client.wait_ready()
    assert await client.generate([request("a")]).get(timeout=0.001) == []


async def test_a_dead_engine_fails_every_request_in_flight_and_the_next(
    client, peer, running, sample
):
    await peer.say(READY)
    await client.wait_ready()
    streams = [client.generate([request(name)]) for name in "ab"]
    await peer.say(EngineDead(message="out of memory"))
    client.fail(await running)
    for stream in streams:
        with pytest.raises(EngineFailedError):
            await stream.get()
    with pytest.raises(EngineDownError, match="out of memory"):
        client.generate([request("c")])
    assert sample("tandem_engine_up") == sample("tandem_engine_ready") == 0


async def test_what_came_before_the_death_is_still_given_out(client, peer, running):
    await peer.say(READY)
    await client.wait_ready()
    stream = client.generate([request("a")])
    output = RequestOutput(request_id="a", new_token_ids=[1])
    await peer.say(StepOutput(outputs=[output], stats=RUNNING))
    await peer.say(EngineDead(message="gone"))
    client.fail(await running)
    assert await stream.get() == [output]
    with pytest.raises(EngineFailedError):
        await stream.get()


async def test_at_the_end_of_the_server_requests_in_flight_are_answered(client, peer):
    await peer.say(READY)
    await client.wait_ready()
    stream = client.generate([request("a")])
    client.end_requests(ServerStoppingError())
    with pytest.raises(ServerStoppingError):
        await stream.get()
