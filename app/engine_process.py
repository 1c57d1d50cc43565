"""The engine's operating system process: started, watched and ended here. Knows no messages."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from engine.config import EngineConfig

SIGTERM_SECONDS = 5.0
# OpenMP threads wait for each other by spinning. Where something else runs on the same cores, long
# spinning makes a step up to 20 times slower; on idle cores this many turns cost nothing.
BRIEF_SPINNING = ("GOMP_SPINCOUNT", "10000")


class EngineProcess:
    """A child with its own private folder for the configuration and the socket.

    It reads end-of-file on its stdin when this process ends, however that happens.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        self.folder.joinpath("engine.json").write_bytes(msgspec.json.encode(config))
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"ipc://{self.folder}/engine.sock"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.process",
            str(self.folder),
            stdin=asyncio.subprocess.PIPE,
            # Modules are looked for in the current folder first: nobody else's are in this one.
            cwd=self.folder,
            env=dict([BRIEF_SPINNING]) | os.environ,
            # Ctrl-C in the terminal is for the front end, which lets requests finish first.
            start_new_session=True,
        )

    async def wait(self) -> str:
        """How the process ended, in words."""
        assert self._process is not None
        code = await self._process.wait()
        return f"the engine process ended with code {code}"

    async def stop(self, *, grace_seconds: float) -> None:
        """End it, first with patience, for it may have been told to, then by signals."""
        process = self._process
        if process is None or await _ended(process, grace_seconds):
            return
        process.terminate()
        if not await _ended(process, SIGTERM_SECONDS):
            process.kill()
            await process.wait()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


async def _ended(process: asyncio.subprocess.Process, timeout: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), timeout)
    except asyncio.TimeoutError:
        return False
    return True
