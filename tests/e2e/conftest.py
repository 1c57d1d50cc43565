"""Real servers: `tandem serve` in its own process, on a free port of the loopback interface."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

START_SECONDS = 120
STOP_SECONDS = 30


@dataclass
class Server:
    """A running `tandem serve`."""

    process: subprocess.Popen[str]
    url: str

    @classmethod
    def start(cls, *arguments: str) -> Server:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                return cls(process, found.group())
        raise RuntimeError(f"the server ended with code {process.wait()}")

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

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def engine_pid(self) -> int:
        """The one child of the server process."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        (pid,) = children
        return pid

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="session")
def server(model_dir: Path) -> Iterator[Server]:
    """The server that a newcomer starts: no flags."""
    assert model_dir
    running = Server.start()
    yield running
    assert running.stop() == 0
