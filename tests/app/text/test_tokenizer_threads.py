from __future__ import annotations

import asyncio
import threading

import pytest

from app.text.tokenizer_threads import MAX_SHORT_CHARS, NUM_SHORT_THREADS, TokenizerThreads


@pytest.fixture
def threads() -> TokenizerThreads:
    return TokenizerThreads()


@pytest.fixture
def release():
    """Set at the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


async def test_short_texts_do_not_wait_for_any_number_of_long_ones(threads, release):
    long = [
        asyncio.create_task(threads.run(release.wait, num_chars=MAX_SHORT_CHARS + 1))
        for _ in range(2 * NUM_SHORT_THREADS)
    ]
    assert await threads.run(lambda: "short", num_chars=MAX_SHORT_CHARS) == "short"
    assert not any(task.done() for task in long)
    release.set()
    await asyncio.gather(*long)


async def test_long_texts_are_read_one_at_a_time(threads):
    running = []

    def read() -> int:
        running.append(1)
        num_running = len(running)
        running.pop()
        return num_running

    counts = [threads.run(read, num_chars=MAX_SHORT_CHARS + 1) for _ in range(20)]
    assert set(await asyncio.gather(*counts)) == {1}


async def test_a_caller_that_goes_away_leaves_the_queue(threads, release):
    first = asyncio.create_task(threads.run(release.wait, num_chars=MAX_SHORT_CHARS + 1))
    were_read = []
    second = asyncio.create_task(
        threads.run(lambda: were_read.append(2), num_chars=MAX_SHORT_CHARS + 1)
    )
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    await threads.run(lambda: were_read.append(3), num_chars=MAX_SHORT_CHARS + 1)
    assert were_read == [3]


async def test_the_event_loop_goes_on_while_a_text_is_read(threads, byte_tokenizer):
    text = "Hello world, " * 40_000
    task = asyncio.create_task(
        threads.run(lambda: byte_tokenizer.encode(text), num_chars=len(text))
    )
    num_turns = 0
    while not task.done():
        await asyncio.sleep(0)
        num_turns += 1
    # With the interpreter's lock held all the while it is 2 or 3.
    assert num_turns > 20
