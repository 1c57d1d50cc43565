"""Raw sockets against uvicorn with our protocol, on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
import uvicorn
from endless_engine import EndlessEngineClient

from app.http.http_protocol import MAX_HEAD_BYTES, MAX_HEADERS, http_options
from app.main import create_app
from app.settings import Settings

BODY = b'{"prompt": "Hi", "max_tokens": 2}'
GET = b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n"


def post(body=BODY, headers=b"", path=b"/v1/completions"):
    return (
        b"POST " + path + b" HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n" + headers + b"\r\n" + body
    )


@contextlib.asynccontextmanager
async def running(app, *, keep_alive=75, **settings):
    """A running server, and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    options = http_options(Settings(**settings))
    config = uvicorn.Config(app, **options, timeout_keep_alive=keep_alive, lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def serving(app, **options):
    async with running(app, **options) as (_, port):
        yield port


@pytest.fixture
async def port(app):
    async with serving(app, read_timeout=30) as port:
        yield port


@pytest.fixture
async def impatient_port(app_with):
    async with serving(app_with(read_timeout=0.1), read_timeout=0.1) as port:
        yield port


async def read_response(reader):
    """Status, headers and body of one response that has a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return int(status_line.split()[1]), headers, body


async def exchange(port, *pieces):
    """What comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    response = await read_response(reader)
    writer.close()
    return response


def code(body):
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Request-Id: a\nb\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\n\r\n",
        b"GET http://:x HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=repr,
)
async def test_what_is_not_http_is_a_400_in_the_envelope(port, data):
    status, headers, body = await exchange(port, data)
    assert (status, code(body)) == (400, "malformed_http")
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Request-Id: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 2**20,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2**17,
        b"GET /" + b"a" * 2**20,
        b"\r\n" * 2**19,
    ],
    ids=[
        "path",
        "header",
        "count",
        "10000",
        "endless header",
        "endless headers",
        "endless path",
        "endless lines",
    ],
)
async def test_a_head_that_is_too_large_is_a_431(port, head):
    """vllm PR#10968: a megabyte of X-Request-Id."""
    status, _, body = await exchange(port, head)
    assert (status, code(body)) == (431, "headers_too_large")


async def test_a_head_may_come_byte_by_byte_and_be_large(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for start in range(len(GET)):
        writer.write(GET[start : start + 1])
        await writer.drain()
    assert (await read_response(reader))[0] == 200
    padding = b"X-Padding: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n"
    writer.write(post(headers=padding))
    assert (await read_response(reader))[0] == 200
    writer.close()


async def test_endless_trailers_do_not_fill_the_memory(port):
    head = post()[: -len(BODY)].replace(
        b"Content-Length: " + str(len(BODY)).encode(), b"Transfer-Encoding: chunked"
    )
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + chunk)
    with contextlib.suppress(ConnectionError):
        for _ in range(1000):
            writer.write(b"X: " + b"a" * 10_000 + b"\r\n")
            await writer.drain()
    status, _, body = await read_response(reader)
    assert (status, code(body)) == (431, "headers_too_large")
    writer.close()


async def test_trailers_are_not_headers(port):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%s\r\n0\r\nContent-Type: application/json\r\n\r\n" % (len(BODY), BODY)
    status, _, _ = await exchange(port, head + chunks)
    assert status == 415


async def test_a_body_in_chunks_is_one_body(port):
    head = post()[: -len(BODY)].replace(
        b"Content-Length: " + str(len(BODY)).encode(), b"Transfer-Encoding: chunked"
    )
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    assert (await exchange(port, head, chunks))[0] == 200


async def test_a_broken_chunk_is_a_400_and_no_error_in_the_log(port, engine, caplog):
    head = post()[: -len(BODY)].replace(
        b"Content-Length: " + str(len(BODY)).encode(), b"Transfer-Encoding: chunked"
    )
    status, _, body = await exchange(port, head, b"5\r\n{", b"zz", b"zz\r\nzz\r\n")
    assert (status, code(body)) == (400, "malformed_http")
    assert engine.requests == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_head_that_never_ends_is_a_408(impatient_port):
    status, headers, body = await exchange(impatient_port, GET[:20])
    assert (status, code(body)) == (408, "request_timeout")
    assert headers["x-should-retry"] == "false"


async def test_bytes_that_trickle_in_do_not_hold_the_connection(impatient_port):
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient_port)
    writer.write(b"GET /")

    async def trickle():
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.01)

    trickling = asyncio.create_task(trickle())
    assert (await read_response(reader))[0] == 408
    assert await reader.read() == b""
    trickling.cancel()
    writer.close()


async def test_a_body_that_never_ends_is_a_408_of_the_application(impatient_port):
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient_port)
    writer.write(post()[:-5])
    status, headers, body = await read_response(reader)
    assert (status, code(body)) == (408, "request_timeout")
    assert headers["x-request-id"]
    writer.close()


async def test_no_token_waits_for_the_receipt_of_the_one_before(app):
    async with running(app) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await read_response(reader)
        [protocol] = server.server_state.connections
        connection = protocol.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


async def test_requests_in_a_row_share_a_connection(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(post())
        assert (await read_response(reader))[0] == 200
    writer.close()


async def test_pipelined_requests_are_answered_in_order(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post() + GET + post(b"{}") + GET)
    statuses = [(await read_response(reader))[0] for _ in range(4)]
    assert statuses == [200, 200, 400, 200]
    writer.close()


async def test_a_refused_upload_leaves_the_connection_usable(app_with):
    app = app_with(max_body_bytes=2048)
    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b" " * 10**6))
        status, _, body = await read_response(reader)
        assert (status, code(body)) == (413, "request_too_large")
        writer.write(post())
        assert (await read_response(reader))[0] == 200
        writer.close()


async def test_an_upload_without_a_length_is_cut_off_at_the_limit(app_with, engine):
    """Kludex/starlette#3431, chap#59."""
    head = post()[: -len(BODY)].replace(
        b"Content-Length: " + str(len(BODY)).encode(), b"Transfer-Encoding: chunked"
    )
    async with serving(app_with(max_body_bytes=2048)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
                await writer.drain()
        assert (await read_response(reader))[0] == 413
        writer.close()
    assert engine.requests == []


@pytest.mark.parametrize("target", [b"/%2e%2e/version", b"http://t/v1/models", b"*", b"//version"])
async def test_odd_request_targets_do_not_go_around_the_key(app_with, target):
    async with serving(app_with(api_key=["k"])) as port:
        data = b"GET " + target + b" HTTP/1.1\r\nHost: t\r\n\r\n"
        assert (await exchange(port, data))[0] in (400, 401)


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
async def test_an_upgrade_is_ignored(port, upgrade):
    data = GET[:-2] + b"Connection: upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n"
    assert (await exchange(port, data))[0] == 200


@pytest.fixture
def endless_engine(byte_tokenizer):
    return EndlessEngineClient(vocab_size=byte_tokenizer.vocab_size)


@pytest.fixture
async def endless_port(endless_engine, byte_tokenizer, metrics):
    settings = Settings(served_model_name="tiny", write_timeout=0.2)
    app = create_app(settings, endless_engine, byte_tokenizer, metrics)
    async with serving(app, write_timeout=0.2) as port:
        yield port


STREAM = post(b'{"prompt": "Hi", "stream": true}')


async def test_garbage_behind_a_stream_does_not_get_into_it(endless_port, endless_engine):
    reader, writer = await asyncio.open_connection("127.0.0.1", endless_port)
    writer.write(STREAM)
    await reader.readuntil(b"data: ")
    writer.write(b"nonsense\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert b"malformed_http" not in await reader.read()
    await asyncio.wait_for(endless_engine.was_aborted.wait(), 30)
    writer.close()


async def test_a_reader_that_stops_is_aborted(endless_port, endless_engine):
    """opencode#19423, opencti#13908: the answer piled up in memory."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", endless_port))
        connection.sendall(STREAM)
        await asyncio.wait_for(endless_engine.was_aborted.wait(), 30)
    assert len(endless_engine.aborted) == 1


async def test_a_reader_that_is_slow_is_not_aborted(endless_port, endless_engine):
    reader, writer = await asyncio.open_connection("127.0.0.1", endless_port, limit=1024)
    writer.write(STREAM)
    for _ in range(100):
        assert await reader.read(16 * 1024)
        await asyncio.sleep(0.01)
    assert endless_engine.aborted == []
    writer.transport.abort()
    await asyncio.wait_for(endless_engine.was_aborted.wait(), 30)


async def test_a_whole_answer_that_is_not_read_is_given_up():
    num_bytes = 10**8

    async def large_answer(_scope, _receive, send):
        headers = [(b"content-length", b"%d" % num_bytes)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * num_bytes})

    async with running(large_answer, write_timeout=0.2) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(GET)
        await reader.readexactly(100)
        await no_connections(server)
        assert len(await reader.read()) < num_bytes
        writer.close()


async def no_connections(server):
    for _ in range(3000):
        if not server.server_state.connections:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a connection is still open")


async def test_a_connection_that_says_nothing_is_closed(app):
    async with serving(app, keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
