"""nginx as a reverse proxy in front, with its buffering on, as it is by default.

The Debian package `nginx` has the program.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import PROMPT
from tests.e2e.conftest import START_SECONDS, Server
from tests.e2e.open_request import OpenRequest, free_port
from tests.e2e.streamed_answer import StreamedAnswer

CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream tandem {{
        server {upstream};
        keepalive 4;
        keepalive_timeout 300s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://tandem;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""
IDLE_SECONDS = 61


@pytest.fixture(scope="module")
def proxied(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same server, by nginx's address."""
    program = shutil.which("nginx")
    assert program is not None, "install nginx: these tests are about it"
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    upstream = server.url.removeprefix("http://")
    path = folder / "nginx.conf"
    path.write_text(CONFIGURATION.format(upstream=upstream, port=port))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(path)])
    url = f"http://127.0.0.1:{port}"
    wait_until_it_answers(url)
    yield Server(server.process, url)
    process.terminate()
    assert process.wait(START_SECONDS) == 0


def wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            httpx.get(f"{url}/health/live")
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_every_token_arrives_before_the_next_one_is_made(server, proxied):
    """The engine stands still: what it has made must all be there, without an end."""
    before = server.metrics()
    name = "tandem_generation_tokens_total"
    body = {
        "prompt": PROMPT,
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    with OpenRequest(proxied, **body) as request:
        request.read_chunks(2)
        with paused(server.engine_pid()):
            num_tokens = server.metrics()[name] - before[name]
            while request.num_token_ids < num_tokens:
                request.read_chunks(request.num_chunks + 1)
            assert request.num_token_ids == num_tokens < 2000
    after = server.wait_until_idle()
    aborted = 'tandem_requests_total{finish_reason="abort"}'
    assert after[aborted] == before[aborted] + 1


def test_a_stream_through_nginx_is_the_same(server, proxied):
    stream = StreamedAnswer.read(proxied, PROMPT, max_tokens=12, logprobs=2)
    assert stream.choices == server.complete(PROMPT, max_tokens=12, logprobs=2)["choices"]


def test_a_connection_to_the_server_survives_a_minute_of_idleness(server, proxied):
    """vllm PR#18472, llm-d#1564, kserve#5446 (106)."""
    proxied.complete(PROMPT, max_tokens=1)
    connections = connections_to(server)
    assert connections
    time.sleep(IDLE_SECONDS)
    proxied.complete(PROMPT, max_tokens=1)
    assert connections_to(server) == connections


def connections_to(server: Server) -> set[str]:
    """The local addresses of all established connections to the server's port."""
    port = f"{int(server.url.rpartition(':')[2]):04X}"
    established = "01"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port}") and row[3] == established}
