"""Who is in the step that runs: written down where it survives the process, however that dies.

The file holds the length of a MessagePack list of request ids, and then the list. The front end
reads it when the engine has died.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.messages import STEP_FILE_HEADER, STEP_FILE_NAME

NUM_BYTES = 1 << 20


class StepRecorder:
    """A small file in the private folder, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        with (folder / STEP_FILE_NAME).open("wb+") as file:
            file.truncate(NUM_BYTES)
            self._map = mmap.mmap(file.fileno(), NUM_BYTES)
        self._encoder = msgspec.msgpack.Encoder()

    def record(self, request_ids: Sequence[str]) -> None:
        """These requests are about to be worked on; too many to write down count as none."""
        self.clear()
        payload = self._encoder.encode(request_ids)
        end = STEP_FILE_HEADER.size + len(payload)
        if end <= NUM_BYTES:
            self._map[STEP_FILE_HEADER.size : end] = payload
            # The length comes last: what is half written is not read.
            self._map[: STEP_FILE_HEADER.size] = STEP_FILE_HEADER.pack(len(payload))

    def clear(self) -> None:
        """Nothing is worked on."""
        self._map[: STEP_FILE_HEADER.size] = STEP_FILE_HEADER.pack(0)
