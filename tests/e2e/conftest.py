"""Real servers: `tandem serve` in its own process, on a free port of the loopback interface."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

START_SECONDS = 120
STOP_SECONDS = 30
LOAD_GAUGES = (
    "tandem_num_requests_running",
    "tandem_num_requests_waiting",
    "tandem_slots_in_use_ratio",
    "tandem_kv_cache_usage_ratio",
)


@dataclass
class Server:
    """A running `tandem serve`."""

    process: subprocess.Popen[str]
    url: str

    @classmethod
    def start(cls, *arguments: str, **environment: str) -> Server:
        process = cls.launch(*arguments, **environment)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                return cls(process, found.group())
        raise RuntimeError(f"the server ended with code {process.wait()}")

    @staticmethod
    def launch(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The process alone, which may not serve yet."""
        return subprocess.Popen(
            [sys.executable, "-m", "app", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
            start_new_session=True,
        )

    def complete(self, prompt: object, **body: object) -> dict:
        response = self.post(prompt, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, prompt: object, **body: object) -> httpx.Response:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 16, **body}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=START_SECONDS)

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as in the text format."""
        text = httpx.get(f"{self.url}/metrics").text
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def wait_until(
        self, condition: Callable[[dict[str, float]], bool], seconds: float = 60
    ) -> dict[str, float]:
        """The metrics that make it true."""
        deadline = time.monotonic() + seconds
        while not condition(metrics := self.metrics()):
            assert time.monotonic() < deadline, metrics
            time.sleep(0.02)
        return metrics

    def wait_until_idle(self) -> dict[str, float]:
        """All metrics, once no request holds or waits for anything."""
        return self.wait_until(lambda metrics: not any(metrics[name] for name in LOAD_GAUGES))

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def engine_pid(self) -> int:
        """The one engine process of the server; ValueError while there is none."""
        return find_engine(self.process.pid)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def find_engine(server_pid: int) -> int:
    """The one child of the server that is an engine; ValueError if there is none."""
    tasks = Path(f"/proc/{server_pid}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    (pid,) = (pid for pid in children if "engine.process" in command_line(pid))
    return int(pid)


def command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


@pytest.fixture(scope="session")
def server(model_dir: Path) -> Iterator[Server]:
    """The server that a newcomer starts: no flags."""
    assert model_dir
    running = Server.start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def reference(server: Server) -> list[dict]:
    """What the server says before anybody asked it for strange things."""
    return server.complete("Hello", max_tokens=8)["choices"]


@pytest.fixture
def unharmed(server: Server, reference: list[dict]) -> Iterator[None]:
    """Whatever the test did, the server answers as before, and nothing is left of it."""
    yield
    assert server.complete("Hello", max_tokens=8)["choices"] == reference
    server.wait_until_idle()
