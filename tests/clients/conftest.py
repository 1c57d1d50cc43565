"""Real clients that are too heavy for every run of the tests: `make test-clients` installs them.

They get no network, and the server that a newcomer starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Server

# Read when the clients are imported.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
}
PROMPT = "Once upon a time, in a town at the edge of the sea,"


@pytest.fixture(scope="session")
def server(model_dir: Path) -> Iterator[Server]:
    assert model_dir
    running = Server.start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def chat(server: Server) -> dict[str, Any]:
    """The server's own answer to a greedy "Hi" of 12 tokens."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 12}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()
