from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
import tokenizers
import uvicorn
from tokenizers import models

from app.dispatch.engine_process import EngineProcess
from app.errors import EngineFailedError
from app.http.http_server import HttpServer
from app.server import bind_socket, serve
from app.settings import Settings
from app.text.tokenizer_config import TokenizerConfig
from engine.config import EngineConfig
from engine.messages import STEP_FILE_NAME

HANG_SECONDS = 60

MakeServer = Callable[[float], HttpServer]


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def make_server(calls) -> MakeServer:
    def make(drain_seconds: float) -> HttpServer:
        return HttpServer(
            uvicorn.Config("unused"),
            drain_seconds=drain_seconds,
            on_drain=lambda: calls.append("drain"),
            on_deadline=lambda: calls.append("deadline"),
        )

    return make


@pytest.fixture
def server(make_server) -> HttpServer:
    return make_server(1000)


@pytest.fixture
async def request_task(server) -> AsyncIterator[asyncio.Task[None]]:
    """A request that is being answered until the test sees to it."""
    task = asyncio.create_task(asyncio.Event().wait())
    server.server_state.tasks.add(task)
    yield task
    task.cancel()


async def turns_of_the_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_idle_server_exits_at_the_first_signal(server, calls):
    server.request_exit()
    await turns_of_the_loop()
    assert server.should_exit
    assert calls == ["drain", "deadline"]


@pytest.mark.usefixtures("request_task")
async def test_the_socket_stays_open_while_a_request_is_answered(server, calls):
    server.request_exit()
    await turns_of_the_loop()
    assert not server.should_exit
    assert calls == ["drain"]


async def test_the_server_exits_when_its_requests_are_answered_whatever_came_since(
    server, request_task
):
    server.request_exit()
    await turns_of_the_loop()
    refused_later = asyncio.create_task(asyncio.Event().wait())
    server.server_state.tasks.add(refused_later)
    request_task.cancel()
    await turns_of_the_loop()
    assert server.should_exit
    refused_later.cancel()


@pytest.mark.usefixtures("request_task")
async def test_the_second_signal_ends_the_patience(server, calls):
    server.request_exit()
    server.request_exit()
    assert server.should_exit
    assert calls == ["drain", "deadline"]


async def test_a_request_that_is_never_done_is_waited_for_until_the_deadline(make_server, calls):
    server = make_server(0.01)
    task = asyncio.create_task(asyncio.Event().wait())
    server.server_state.tasks.add(task)
    server.request_exit()
    await turns_of_the_loop()
    assert calls == ["drain"]
    await asyncio.wait([server.drainer])
    assert calls == ["drain", "deadline"]
    assert server.should_exit
    task.cancel()


def test_an_address_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        bind_socket(*taken.getsockname())


def test_the_engine_finds_its_configuration_in_a_private_folder():
    config = EngineConfig(model_path="/model", max_num_seqs=3)
    process = EngineProcess(config)
    try:
        assert process.folder.stat().st_mode & 0o777 == 0o700
        written = process.folder.joinpath("engine.json").read_bytes()
        assert msgspec.json.decode(written, type=EngineConfig) == config
        assert process.address == f"ipc://{process.folder}/engine.sock"
    finally:
        process.remove_folder()
    assert not process.folder.exists()


@pytest.mark.parametrize("record", [None, b"", bytes(64)], ids=["no file", "empty", "no step"])
def test_an_engine_that_was_in_no_step_blames_nobody(record):
    process = EngineProcess(EngineConfig(model_path="/model"))
    if record is not None:
        process.folder.joinpath(STEP_FILE_NAME).write_bytes(record)
    assert process.running_request_ids() == []
    process.remove_folder()


@pytest.fixture
def serving(tmp_path) -> Iterator[Callable[[str], Coroutine[Any, Any, None]]]:
    """A whole server, over a Python program in the engine's place."""
    vocabulary = models.WordLevel({"a": 0}, unk_token="a")
    tokenizers.Tokenizer(vocabulary).save(str(tmp_path / "tokenizer.json"))
    listener = bind_socket("127.0.0.1", 0)

    def create(engine: str) -> Coroutine[Any, Any, None]:
        return serve(
            Settings(),
            EngineConfig(model_path=str(tmp_path)),
            TokenizerConfig(),
            listener,
            lambda _: None,
            engine_command=(sys.executable, "-c", engine),
        )

    with listener:
        yield create


async def test_an_engine_that_does_not_start_ends_the_server_with_a_reason(serving):
    with pytest.raises(EngineFailedError, match="ended with code 3"):
        await asyncio.wait_for(serving("raise SystemExit(3)"), HANG_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_server_whose_http_side_is_not_there_yet(serving, number):
    task = asyncio.create_task(serving("import time; time.sleep(1000)"))
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(task, HANG_SECONDS)
