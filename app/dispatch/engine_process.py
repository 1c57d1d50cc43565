"""The engine's operating system process: started, watched and ended here. Knows no messages."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.messages import STEP_FILE_HEADER, STEP_FILE_NAME

SIGTERM_SECONDS = 5.0
# OpenMP threads wait for each other by spinning. Where something else runs on the same cores, long
# spinning makes a step up to 20 times slower; on idle cores this many turns cost nothing.
BRIEF_SPINNING = ("GOMP_SPINCOUNT", "10000")
ENGINE_COMMAND = (sys.executable, "-m", "engine.process")
# Nothing that an engine does makes it end like this, if it is not out of memory.
OUTSIDE_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)


class EngineProcess:
    """A child with its own private folder for the configuration and the socket.

    It reads end-of-file on its stdin when this process ends, however that happens.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        vmstat: Path = Path("/proc/vmstat"),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        self.folder.joinpath("engine.json").write_bytes(msgspec.json.encode(config))
        self._command = command
        self._vmstat = vmstat
        self._num_oom_kills = _num_oom_kills(vmstat)
        self._process: asyncio.subprocess.Process | None = None
        self._was_ended_here = False

    @property
    def address(self) -> str:
        return f"ipc://{self.folder}/engine.sock"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            str(self.folder),
            stdin=asyncio.subprocess.PIPE,
            # Modules are looked for in the current folder first: nobody else's are in this one.
            cwd=self.folder,
            env=dict([BRIEF_SPINNING]) | os.environ,
            # Ctrl-C in the terminal is for the front end, which lets requests finish first.
            start_new_session=True,
        )

    async def wait(self) -> int:
        """How the process ended: its exit code, or minus the signal."""
        assert self._process is not None
        return await self._process.wait()

    @property
    def was_killed_from_outside(self) -> bool:
        """Somebody else ended it, who is neither this process nor the kernel out of memory."""
        code = self._process.returncode if self._process is not None else None
        by_signal = code is not None and -code in OUTSIDE_SIGNALS
        is_out_of_memory = _num_oom_kills(self._vmstat) != self._num_oom_kills
        return by_signal and not self._was_ended_here and not is_out_of_memory

    def running_request_ids(self) -> list[str]:
        """Who was in the step that ran when the process died."""
        try:
            record = self.folder.joinpath(STEP_FILE_NAME).read_bytes()
        except FileNotFoundError:
            record = b""
        if not record:
            return []
        start = STEP_FILE_HEADER.size
        (length,) = STEP_FILE_HEADER.unpack(record[:start])
        payload = record[start : start + length]
        return msgspec.msgpack.decode(payload, type=list[str]) if payload else []

    async def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._was_ended_here = True
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def stop(self, *, grace_seconds: float) -> None:
        """End it, first with patience, for it may have been told to, then by signals."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if await _ended(process, grace_seconds):
            return
        process.terminate()
        if not await _ended(process, SIGTERM_SECONDS):
            await self.kill()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


async def _ended(process: asyncio.subprocess.Process, timeout: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), timeout)
    except asyncio.TimeoutError:
        return False
    return True


def _num_oom_kills(vmstat: Path) -> int | None:
    """How often the kernel has killed for lack of memory; None where it does not say."""
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
