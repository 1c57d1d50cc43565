from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import zmq
import zmq.asyncio

from app.dispatch.engine_link import EngineLink
from engine.messages import AbortRequest, AddRequest, EngineDead, EngineRequest, SamplingParams


@pytest.fixture
async def link(tmp_path) -> AsyncIterator[EngineLink]:
    with EngineLink(f"ipc://{tmp_path}/engine.sock") as link:
        yield link


@pytest.fixture
async def peer(tmp_path) -> AsyncIterator[zmq.asyncio.Socket]:
    """The engine's end of the socket."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"ipc://{tmp_path}/engine.sock")
        yield socket


async def test_requests_go_out_in_order(link, peer):
    params = SamplingParams(max_tokens=4)
    add = AddRequest(request_id="a", prompt_token_ids=[1], sampling_params=params)
    abort = AbortRequest(request_id="a")
    link.send(add)
    link.send(abort)
    heard = [msgspec.msgpack.decode(await peer.recv(), type=EngineRequest) for _ in range(2)]
    assert heard == [add, abort]


async def test_what_the_engine_says_comes_in(link, peer):
    await peer.send(msgspec.msgpack.encode(EngineDead(message="out of memory")))
    assert await link.receive() == EngineDead(message="out of memory")


async def test_what_was_said_before_the_death_can_still_be_read(link, peer):
    await peer.send(msgspec.msgpack.encode(EngineDead(message="gone")))
    peer.close()
    assert await link.receive() == EngineDead(message="gone")


async def test_sending_to_nobody_does_not_wait(link):
    link.send(AbortRequest(request_id="a"))
