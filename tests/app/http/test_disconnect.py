from __future__ import annotations

import asyncio

import pytest
from asgi_connection import AsgiConnection

from app.http.event_stream import EventStreamResponse
from engine.messages import RequestOutput


def one_token_then_silence(request):
    return [RequestOutput(request_id=request.request_id, new_token_ids=[70])]


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_a_stream_whose_client_leaves_is_aborted(app, engine, sample):
    """vllm#9428, vllm#54947, llama.cpp#11720, sglang#36552."""
    engine.script = one_token_then_silence
    connection = AsgiConnection.of({"prompt": "Hi", "stream": True})
    served = connection.start(app)
    await connection.got_body.wait()
    connection.gone.set()
    await served
    assert engine.aborted == [engine.requests[0].request_id]
    assert sample("tandem_requests_total", finish_reason="abort") == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_before_the_first_token_is_aborted(
    app, engine, sample, streamed, caplog
):
    engine.script = lambda _: []
    connection = AsgiConnection.of({"prompt": "Hi", "n": 2, "stream": streamed})
    served = connection.start(app)
    await engine.asked.wait()
    connection.gone.set()
    await served
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert sample("tandem_requests_total", finish_reason="abort") == 2
    assert errors(caplog) == []


async def test_a_client_that_leaves_in_the_middle_of_a_whole_answer_is_aborted(app, engine):
    engine.script = one_token_then_silence
    connection = AsgiConnection.of({"prompt": "Hi"})
    served = connection.start(app)
    await engine.asked.wait()
    connection.gone.set()
    await served
    assert engine.aborted == [engine.requests[0].request_id]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_before_its_prompt_is_read_starts_nothing(
    app, engine, streamed, caplog
):
    """A large prompt is tokenised in a thread, which nobody waits for then."""
    body = {"prompt": "word " * 10**5, "truncate_prompt_tokens": 5, "stream": streamed}
    connection = AsgiConnection.of(body)
    connection.gone.set()
    await connection.run(app)
    assert connection.status == 499
    assert engine.requests == []
    assert errors(caplog) == []


async def test_a_client_that_leaves_while_it_is_sent_to_is_aborted(app, engine):
    engine.script = one_token_then_silence
    connection = AsgiConnection.of({"prompt": "Hi", "stream": True})

    async def send_that_hangs(message):
        if message["type"] == "http.response.body":
            connection.gone.set()
            await asyncio.Event().wait()

    connection.send = send_that_hangs
    await connection.run(app)
    assert engine.aborted == [engine.requests[0].request_id]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_server_that_ends_the_task_aborts_the_request(app, engine, streamed):
    engine.script = lambda _: []
    connection = AsgiConnection.of({"prompt": "Hi", "stream": streamed})
    served = connection.start(app)
    await engine.asked.wait()
    served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served
    assert engine.aborted == [engine.requests[0].request_id]


async def test_a_client_that_leaves_after_its_answer_aborts_nothing(app, engine):
    connection = AsgiConnection.of({"prompt": "Hi"})
    await connection.run(app)
    connection.gone.set()
    assert connection.status == 200
    assert engine.aborted == []


async def test_a_silent_stream_is_kept_alive_by_comments():
    async def chunks():
        yield None
        yield {"id": "x"}

    generated = chunks()
    sent = []

    async def send(message):
        sent.append(message.get("body", b""))

    response = EventStreamResponse(await anext(generated), generated)
    await response.stream_response(send)
    assert b"".join(sent) == b': keep-alive\n\ndata: {"id":"x"}\n\ndata: [DONE]\n\n'


async def test_a_stream_says_that_nobody_may_hold_it_back(app):
    """llama.cpp#20872, llama-swap#236, dstack#4269: a proxy collected the events."""
    connection = AsgiConnection.of({"prompt": "Hi", "stream": True})
    await connection.run(app)
    assert connection.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert connection.headers["cache-control"] == "no-cache"
    assert connection.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in connection.headers


async def test_a_bug_in_the_middle_of_a_stream_is_an_event_without_its_details(caplog):
    async def chunks():
        yield {"id": "x"}
        raise KeyError("secret")

    generated = chunks()
    sent = []

    async def send(message):
        sent.append(message.get("body", b""))

    response = EventStreamResponse(await anext(generated), generated)
    await response.stream_response(send)
    body = b"".join(sent)
    assert b"internal_error" in body
    assert b"secret" not in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert errors(caplog) == ["unexpected error in a stream"]
