from __future__ import annotations

import asyncio
import json

import pytest

from app.event_stream import EventStreamResponse
from engine.messages import RequestOutput


def one_token_then_silence(request):
    return [RequestOutput(request_id=request.request_id, new_token_ids=[70])]


class Connection:
    """A client at the ASGI seam that goes away when it is told to."""

    def __init__(self, body: dict[str, object]) -> None:
        self._body = json.dumps(body).encode()
        self._read = False
        self.gone = asyncio.Event()
        self.got_body = asyncio.Event()

    async def receive(self):
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.body" and message["body"]:
            self.got_body.set()

    def start(self, app) -> asyncio.Task[None]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "server": ("tandem", 80),
        }
        return asyncio.create_task(app(scope, self.receive, self.send))


async def test_a_stream_whose_client_leaves_is_aborted(app, engine, sample):
    engine.script = one_token_then_silence
    connection = Connection({"prompt": "Hi", "stream": True})
    served = connection.start(app)
    await connection.got_body.wait()
    connection.gone.set()
    await served
    assert engine.aborted == [engine.requests[0].request_id]
    assert sample("tandem_requests_total", finish_reason="abort") == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_before_the_first_token_is_aborted(
    app, engine, sample, streamed
):
    engine.script = lambda _: []
    connection = Connection({"prompt": "Hi", "n": 2, "stream": streamed})
    served = connection.start(app)
    await engine.asked.wait()
    connection.gone.set()
    await served
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert sample("tandem_requests_total", finish_reason="abort") == 2


async def test_a_client_that_leaves_while_it_is_sent_to_is_aborted(app, engine):
    engine.script = one_token_then_silence
    connection = Connection({"prompt": "Hi", "stream": True})

    async def send_that_hangs(message):
        if message["type"] == "http.response.body":
            connection.gone.set()
            await asyncio.Event().wait()

    connection.send = send_that_hangs
    await connection.start(app)
    assert engine.aborted == [engine.requests[0].request_id]


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
