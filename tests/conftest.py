"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.model_source import default_cache_dir, resolve_model

# Read when torch is first imported. Threads that spin for each other take 20 times as long when
# something else runs on the same cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The folder of the real default model, fetched on first use."""
    cache_dir = os.environ.get("TANDEM_CACHE_DIR")
    return resolve_model(None, Path(cache_dir) if cache_dir else default_cache_dir())
