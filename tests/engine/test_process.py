"""The engine process as the front end sees it: real, but for the model."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import poisoned_engine
import pytest
import zmq
from driver import add_request
from fake_backend import continuation
from poisoned_engine import POISON

from engine.config import EngineConfig
from engine.messages import (
    STEP_FILE_HEADER,
    STEP_FILE_NAME,
    EngineDead,
    EngineMessage,
    EngineReady,
    EngineRequest,
    Shutdown,
    StepOutput,
)

DEADLINE_SECONDS = 60
# Engines that start when their front end has already gone, one after the other, each in a fork that
# spares it the imports.
START_ORPHANS = """
import os, sys, threading, engine.process
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for folder in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        sys.argv = ["engine", folder]
        engine.process.main(lambda *_: threading.Event().wait())
    os.waitpid(pid, 0)
"""


class RunningEngine:
    """The process and its socket."""

    def __init__(self, folder: Path, socket: zmq.Socket[bytes], deed: str) -> None:
        self.folder = folder
        self._socket = socket
        config = EngineConfig(model_path=deed)
        folder.joinpath("engine.json").write_bytes(msgspec.json.encode(config))
        self.process = subprocess.Popen(
            [sys.executable, poisoned_engine.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def tell(self, *messages: EngineRequest) -> None:
        for message in messages:
            self._socket.send(msgspec.msgpack.encode(message))

    def hear(self) -> EngineMessage:
        assert self._socket.poll(DEADLINE_SECONDS * 1000)
        return msgspec.msgpack.decode(self._socket.recv(), type=EngineMessage)

    def text_until_death(self, request_id: str) -> list[int]:
        """Everything it says of one request; it may die with or without a word."""
        text: list[int] = []
        while self.process.poll() is None or self._socket.poll(0):
            if self._socket.poll(10):
                message = self.hear()
                if isinstance(message, StepOutput):
                    mine = [o for o in message.outputs if o.request_id == request_id]
                    text += [token for output in mine for token in output.new_token_ids]
        return text

    def recorded(self) -> list[str]:
        data = (self.folder / STEP_FILE_NAME).read_bytes()
        (length,) = STEP_FILE_HEADER.unpack_from(data)
        payload = data[STEP_FILE_HEADER.size :][:length]
        return msgspec.msgpack.decode(payload, type=list[str]) if payload else []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], RunningEngine]]:
    started: list[RunningEngine] = []
    folder = tmp_path / "private"
    folder.mkdir()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{folder}/engine.sock")

        def start(deed: str) -> RunningEngine:
            started.append(RunningEngine(folder, socket, deed))
            assert isinstance(started[-1].hear(), EngineReady)
            return started[-1]

        yield start
        for engine in started:
            engine.process.kill()
            engine.process.wait()
            engine.process.stdin.close()


@pytest.mark.parametrize("deed", ["abort", "exception"])
def test_the_requests_of_the_step_in_which_it_died_are_on_record(start, deed):
    """A prefill step is alone with the poison, while the others decode; one waits for a slot."""
    engine = start(deed)
    others = [add_request(f"r{i}", [i, 1], max_tokens=1900) for i in range(3)]
    engine.tell(*others)
    while not isinstance(step := engine.hear(), StepOutput) or step.stats.num_running < 3:
        pass
    engine.tell(add_request("poison", [POISON, 5]), add_request("waits", [1, 2]))
    engine.text_until_death("poison")
    assert engine.recorded() == ["poison"]
    assert engine.process.wait() == (-signal.SIGABRT if deed == "abort" else 1)


def test_an_exception_in_a_step_is_told(start):
    engine = start("exception")
    engine.tell(add_request("poison", [POISON, 5]))
    assert engine.hear() == EngineDead(message="RuntimeError: poisoned")


def test_garbage_collections_leave_out_what_was_loaded(start):
    engine = start("count_frozen")
    engine.tell(add_request("poison", [POISON, 5]))
    (num_frozen,) = re.findall(r"RuntimeError: (\d+) objects", engine.hear().message)
    # The modules alone are more than a hundred thousand.
    assert int(num_frozen) > 50_000


def test_an_engine_that_ended_between_two_steps_was_in_none(start):
    engine = start("abort")
    engine.tell(add_request("a", [3, 4], max_tokens=5))
    text: list[int] = []
    while len(text) < 5:
        text += [t for output in engine.hear().outputs for t in output.new_token_ids]
    assert text == continuation([3, 4], 5)
    engine.tell(Shutdown())
    assert engine.process.wait(DEADLINE_SECONDS) == 0
    assert engine.recorded() == []


@pytest.mark.parametrize("deed", ["abort", "hang"])
def test_it_ends_with_the_front_end_and_cleans_up_behind_it(start, deed):
    """Its input is closed when the front end has gone, whatever it does at the moment."""
    engine = start(deed)
    if deed == "hang":
        engine.tell(add_request("poison", [POISON, 5]))
    engine.process.stdin.close()
    assert engine.process.wait(DEADLINE_SECONDS) == 1
    assert not engine.folder.exists()


def test_an_engine_that_starts_without_its_front_end_leaves_nothing(tmp_path):
    """It makes no file in the folder that its other thread is removing."""
    folders = [tmp_path / str(i) for i in range(200)]
    for folder in folders:
        folder.mkdir()
        folder.joinpath("engine.json").write_bytes(msgspec.json.encode(EngineConfig(model_path="")))
    subprocess.run([sys.executable, "-c", START_ORPHANS, *map(str, folders)], check=True)
    assert not list(tmp_path.iterdir())
