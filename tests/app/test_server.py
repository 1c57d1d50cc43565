from __future__ import annotations

import socket

import msgspec
import pytest
import uvicorn

from app.engine_process import EngineProcess
from app.server import HttpServer, bind_socket
from engine.config import EngineConfig


@pytest.fixture
def deadlines() -> list[str]:
    return []


@pytest.fixture
def server(deadlines) -> HttpServer:
    return HttpServer(
        uvicorn.Config("unused"),
        drain_seconds=1000,
        on_deadline=lambda: deadlines.append("reached"),
    )


async def test_the_first_signal_lets_requests_finish(server, deadlines):
    server.request_exit()
    assert server.should_exit
    assert deadlines == []


async def test_the_second_signal_ends_the_patience(server, deadlines):
    server.request_exit()
    server.request_exit()
    assert deadlines == ["reached"]


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
