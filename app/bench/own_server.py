"""A server that lives as long as the benchmark; knows only the command that starts one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.bench.bench_error import BenchError, ServerGoneError

FLAGS = ("--port", "0", "--log-level", "warning")
# For the engine to end its step and both processes to leave.
STOP_SECONDS = 20
EXIT_SECONDS = 2


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """The URL of a new server with these flags. In the block, SIGTERM and SIGHUP act as Ctrl-C."""
    with _signals_as_ctrl_c():
        # Ctrl-C is for the benchmark, which then stops the server: it has a session of its own.
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", *FLAGS, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield _address(process)
        except ServerGoneError as error:
            raise BenchError(f"{error}{_exit_code(process)}") from error
        finally:
            _stop(process)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = (re.search(r"http://\S+:\d+", line) for line in process.stdout)
    address = next(filter(None, found), None)
    if address is None:
        raise BenchError(f"the server ended with code {process.wait()} before it was ready")
    return address.group()


def _exit_code(process: subprocess.Popen[str]) -> str:
    try:
        return f" (the server ended with code {process.wait(EXIT_SECONDS)})"
    except subprocess.TimeoutExpired:
        return ""


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """What is ignored, as SIGHUP is under nohup, stays so."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, old in heard.items():
            signal.signal(number, old)
