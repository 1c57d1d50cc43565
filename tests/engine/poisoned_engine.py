"""The real engine process, but for a backend that knows a deadly token: `model_path` says what it
does."""

from __future__ import annotations

import gc
import os
import threading

import torch
from fake_backend import FakeBackend, build_core

from engine.backends.base import ForwardRow
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import EngineReady
from engine.process import MakeModelRunner, main

POISON = 31
MAX_MODEL_LEN = 2000


def fail() -> None:
    raise RuntimeError("poisoned")


def count_frozen() -> None:
    raise RuntimeError(f"{gc.get_freeze_count()} objects are frozen")


DEEDS = {
    "abort": os.abort,
    "exception": fail,
    "hang": threading.Event().wait,
    "count_frozen": count_frozen,
}


class PoisonedBackend(FakeBackend):
    def __init__(self, deed: str) -> None:
        super().__init__(max_model_len=MAX_MODEL_LEN)
        self._deed = DEEDS[deed]

    def forward(self, rows: tuple[ForwardRow, ...]) -> torch.Tensor:
        if any(row.start_position == 0 and row.token_ids[0] == POISON for row in rows):
            self._deed()
        return super().forward(rows)


def build(
    config: EngineConfig, make_model_runner: MakeModelRunner
) -> tuple[EngineCore, EngineReady]:
    backend = PoisonedBackend(config.model_path)
    ready = EngineReady(
        vocab_size=backend.info.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=backend.info.num_slots,
        num_speculative_tokens=0,
        speculative_method="none",
        device="cpu",
        dtype="float32",
        eos_token_ids=[],
        load_seconds=0.0,
    )
    return build_core(backend, make_model_runner=make_model_runner), ready


if __name__ == "__main__":
    main(build)
