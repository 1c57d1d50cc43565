from __future__ import annotations

import asyncio

import pytest

from app.dispatch.output_stream import OutputStream
from engine.messages import RequestOutput

OUTPUT = RequestOutput(request_id="a", new_token_ids=[1])
SHORT, LONG = 0.01, 1000.0


@pytest.fixture
def stream() -> OutputStream:
    return OutputStream(["a"], lambda _: None)


async def test_a_look_gives_up_after_its_own_timeout_whatever_earlier_ones_had(stream):
    for timeout in (SHORT, 2 * SHORT, LONG, SHORT):
        if timeout == LONG:
            stream.put(OUTPUT)
        started = asyncio.get_running_loop().time()
        assert await stream.get(timeout) == ([OUTPUT] if timeout == LONG else [])
        if timeout != LONG:
            assert asyncio.get_running_loop().time() - started >= timeout


async def test_a_look_with_a_long_timeout_outlasts_the_timer_of_one_with_a_short_one(stream):
    loop = asyncio.get_running_loop()
    early = asyncio.create_task(stream.get(SHORT))
    await asyncio.sleep(0)
    stream.put(OUTPUT)
    assert await early == [OUTPUT]
    loop.call_later(3 * SHORT, stream.put, OUTPUT)
    assert await stream.get(LONG) == [OUTPUT]


async def test_a_look_without_a_timeout_outlasts_the_timer_of_one_with_it(stream):
    early = asyncio.create_task(stream.get(SHORT))
    await asyncio.sleep(0)
    stream.put(OUTPUT)
    assert await early == [OUTPUT]
    asyncio.get_running_loop().call_later(3 * SHORT, stream.put, OUTPUT)
    assert await stream.get() == [OUTPUT]


async def test_a_look_with_a_short_timeout_does_not_wait_for_the_timer_of_one_with_a_long_one(
    stream,
):
    early = asyncio.create_task(stream.get(LONG))
    await asyncio.sleep(0)
    stream.put(OUTPUT)
    assert await early == [OUTPUT]
    assert await asyncio.wait_for(stream.get(SHORT), LONG / 100) == []
