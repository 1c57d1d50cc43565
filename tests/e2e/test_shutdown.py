"""How a server ends: in order, at once, at its deadline, or by force; nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import START_SECONDS, STOP_SECONDS, Server, find_engine
from tests.e2e.open_request import OpenRequest

PROMPT = "Once upon a time, in a town at the edge of the sea,"
ENDLESS = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "speculative": False}


@pytest.fixture
def start(model_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers whose private folders are in `tmp_path`."""
    assert model_dir
    servers: list[Server] = []

    def start(*arguments: str) -> Server:
        servers.append(Server.start(*arguments, TMPDIR=str(tmp_path)))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()


def wait_until(condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def engine_of(server_pid: int) -> int | None:
    try:
        return find_engine(server_pid)
    except (ValueError, FileNotFoundError):
        return None


def private_folders(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("tandem-*"))


def status(server: Server, path: str) -> int:
    return httpx.get(f"{server.url}{path}").status_code


def events(stream: OpenRequest) -> list[str]:
    return [line[6:] for line in stream.received.decode().splitlines() if line[:6] == "data: "]


def test_after_the_first_signal_running_streams_finish_and_new_requests_are_refused(
    start, tmp_path
):
    """vllm#24885: streams were cut. uvicorn alone would close its socket at once."""
    server = start()
    engine = server.engine_pid()
    body = {"prompt": PROMPT, "max_tokens": 100, "ignore_eos": True, "speculative": False}
    with OpenRequest(server, stream=True, **body) as stream:
        stream.read_chunks(2)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: status(server, "/ready") == 503)
        refused = server.post(PROMPT)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_stopping"
        assert refused.headers["Retry-After"]
        assert refused.headers["retry-after-ms"]
        assert status(server, "/health/live") == 200
        stream.read_to_the_end()
    *chunks, done = events(stream)
    assert done == "[DONE]"
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(STOP_SECONDS) == 0
    assert not is_running(engine)
    assert not private_folders(tmp_path)


def ended_by_the_server(stream: OpenRequest) -> bool:
    *_, error, done = events(stream)
    return json.loads(error)["error"]["code"] == "server_stopping" and done == "[DONE]"


@pytest.mark.parametrize("second_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_answers_what_is_left_with_an_error_and_exits(start, second_signal):
    server = start("--shutdown-timeout", "1000")
    with ThreadPoolExecutor(1) as pool, OpenRequest(server, stream=True, **ENDLESS) as stream:
        stream.read_chunks(2)
        whole = pool.submit(server.post, **ENDLESS)
        server.wait_until(lambda metrics: metrics["tandem_num_requests_running"] == 2)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: status(server, "/ready") == 503)
        server.process.send_signal(second_signal)
        stream.read_to_the_end()
        assert ended_by_the_server(stream)
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["code"] == "server_stopping"
    assert server.process.wait(STOP_SECONDS) == 0


def test_at_the_deadline_neither_idle_connections_nor_clients_that_never_read_keep_it(
    start, tmp_path
):
    """uvicorn#451: idle connections and event streams held the exit up for ever."""
    server = start("--shutdown-timeout", "1")
    host, port = server.url.removeprefix("http://").split(":")
    never_read = {**ENDLESS, "n": 8, "logprobs": 20, "stream": True}
    with (
        socket.create_connection((host, int(port))) as idle,
        OpenRequest(server, receive_buffer=1024, **never_read),
        OpenRequest(server, stream=True, **ENDLESS) as stream,
    ):
        idle.sendall(b"GET /version HTTP/1.1\r\nHost: tandem\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        stream.read_chunks(2)
        server.process.send_signal(signal.SIGTERM)
        stream.read_to_the_end()
        assert ended_by_the_server(stream)
        assert server.process.wait(STOP_SECONDS) == 0
    assert not private_folders(tmp_path)


def test_a_server_that_is_killed_leaves_no_engine_and_no_folder(start, tmp_path):
    server = start()
    engine = server.engine_pid()
    with OpenRequest(server, stream=True, **ENDLESS) as stream:
        stream.read_chunks(2)
        server.process.kill()
        wait_until(lambda: not is_running(engine) and not private_folders(tmp_path))


def test_a_server_that_is_killed_while_its_engine_starts_again_leaves_nothing(start, tmp_path):
    server = start()
    old_engine = server.engine_pid()
    os.kill(old_engine, signal.SIGKILL)
    wait_until(lambda: engine_of(server.process.pid) not in (None, old_engine))
    engine = server.engine_pid()
    server.process.kill()
    wait_until(lambda: not is_running(engine) and not private_folders(tmp_path))


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_ended_while_it_loads_leaves_nothing(model_dir, tmp_path, signal_number):
    assert model_dir
    process = Server.launch(TMPDIR=str(tmp_path))
    wait_until(lambda: engine_of(process.pid))
    engine = find_engine(process.pid)
    process.send_signal(signal_number)
    exit_code = -signal.SIGKILL if signal_number == signal.SIGKILL else 0
    assert process.wait(STOP_SECONDS) == exit_code
    wait_until(lambda: not is_running(engine) and not private_folders(tmp_path))
    process.stdout.close()
