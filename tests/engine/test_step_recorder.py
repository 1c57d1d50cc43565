from __future__ import annotations

import signal
import subprocess
import sys

import msgspec
import pytest

from engine.messages import STEP_FILE_HEADER, STEP_FILE_NAME
from engine.step_recorder import NUM_BYTES, StepRecorder

RECORD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from engine.step_recorder import StepRecorder

StepRecorder(Path(sys.argv[1])).record(["a", "b"])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def recorder(tmp_path) -> StepRecorder:
    return StepRecorder(tmp_path)


def recorded(folder) -> list[str] | None:
    """None where nothing is worked on."""
    data = (folder / STEP_FILE_NAME).read_bytes()
    (length,) = STEP_FILE_HEADER.unpack_from(data)
    payload = data[STEP_FILE_HEADER.size :][:length]
    return msgspec.msgpack.decode(payload, type=list[str]) if payload else None


def test_the_latest_record_is_in_the_file_at_once(recorder, tmp_path):
    recorder.record(["a" * 50, "b" * 50])
    recorder.record(["c\n"])
    assert recorded(tmp_path) == ["c\n"]


def test_what_was_cleared_is_gone(recorder, tmp_path):
    recorder.record(["a"])
    recorder.clear()
    assert recorded(tmp_path) is None


def test_more_than_fits_counts_as_nothing(recorder, tmp_path):
    recorder.record(["a"])
    recorder.record(["b" * NUM_BYTES])
    assert recorded(tmp_path) is None


def test_a_record_survives_kill_9(tmp_path):
    ended = subprocess.run([sys.executable, "-c", RECORD_AND_DIE, tmp_path], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert recorded(tmp_path) == ["a", "b"]
