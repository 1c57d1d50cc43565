from __future__ import annotations

import asyncio

import pytest
from asgi_connection import AsgiConnection

MAX_BYTES = 2048
BODY = b'{"prompt": "Hi", "max_tokens": 1}'


@pytest.fixture
def app(app_with):
    return app_with(max_body_bytes=MAX_BYTES, read_timeout=0.05)


def padded(num_bytes):
    return BODY + b" " * (num_bytes - len(BODY))


@pytest.mark.parametrize("num_pieces", [1, 5], ids=["whole", "in pieces"])
@pytest.mark.parametrize(
    ("num_bytes", "status"), [(MAX_BYTES, 200), (MAX_BYTES + 1, 413), (50 * MAX_BYTES, 413)]
)
async def test_the_limit_counts_the_bytes_that_arrive(app, num_pieces, num_bytes, status):
    """Kludex/starlette#3431: a body without a length went around the limit."""
    body = padded(num_bytes)
    size = -(-num_bytes // num_pieces)
    pieces = [body[start : start + size] for start in range(0, num_bytes, size)]
    connection = AsgiConnection(pieces)
    await connection.run(app)
    assert connection.status == status
    if status == 413:
        assert connection.json()["error"]["code"] == "request_too_large"
        assert str(MAX_BYTES) in connection.json()["error"]["message"]


@pytest.mark.parametrize("declared", [b"1", b"nonsense", b"-5", b"9" * 30, "²".encode()])
async def test_a_length_that_lies_is_not_believed(app, declared):
    connection = AsgiConnection([padded(MAX_BYTES + 1)], headers=[(b"content-length", declared)])
    await connection.run(app)
    assert connection.status == 413


async def test_a_declared_length_above_the_limit_is_refused_before_reading(app):
    connection = AsgiConnection(
        [BODY], headers=[(b"content-length", b"100000000")], path="/v1/completions"
    )
    await connection.run(app)
    assert connection.status == 413
    assert connection.num_received == 0


async def test_a_body_too_large_for_the_limit_is_refused_on_every_route(app):
    for path in ("/v1/models", "/nowhere", "/health"):
        connection = AsgiConnection([], headers=[(b"content-length", b"100000")], path=path)
        await connection.run(app)
        assert connection.status == 413


async def test_a_body_that_does_not_arrive_in_time_is_a_408(app):
    connection = AsgiConnection([BODY[:10]], complete=False)
    await connection.run(app)
    assert connection.status == 408
    assert connection.json()["error"]["code"] == "request_timeout"
    assert connection.headers["x-should-retry"] == "false"


async def test_bytes_that_trickle_in_do_not_buy_more_time(app):
    connection = AsgiConnection([BODY[:1]] * 1000, complete=False, seconds_between=0.01)
    await connection.run(app)
    assert connection.status == 408
    assert connection.num_received < 100


async def test_the_read_timeout_does_not_limit_the_answer(app, engine):
    engine.script = lambda _: []
    connection = AsgiConnection([BODY])
    served = asyncio.create_task(connection.run(app))
    await engine.asked.wait()
    # Twice the read timeout.
    done, _ = await asyncio.wait({served}, timeout=0.1)
    assert not done
    connection.gone.set()
    await served


async def test_a_client_that_leaves_while_it_sends_is_not_an_error(app, engine, caplog):
    connection = AsgiConnection([BODY[:10]], complete=False)
    connection.gone.set()
    await connection.run(app)
    assert connection.status == 499
    assert engine.requests == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
