"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from app.dispatch.engine_process import BRIEF_SPINNING
from app.model_source import default_cache_dir, resolve_model

# As for the engine process; it is read when torch is first imported.
os.environ.setdefault(*BRIEF_SPINNING)

# A busy machine is not a failure.
settings.register_profile("no_clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no_clock")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The folder of the real default model, fetched on first use."""
    cache_dir = os.environ.get("TANDEM_CACHE_DIR")
    return resolve_model(None, Path(cache_dir) if cache_dir else default_cache_dir())
