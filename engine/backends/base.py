"""The backend protocol: the functions of a loaded model that the engine wants to call.

It does not know requests, sampling or speculation; rows of token ids go in, logits come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class ForwardRow:
    """Some consecutive tokens of one slot: their KV is written from `start_position` on.

    The logits of the last `num_logits` of them are wanted: none in the middle of a prompt, 1 at its
    end, draft length + 1 to verify a draft, all of them for prompt logprobs.
    """

    slot_id: int
    start_position: int
    token_ids: tuple[int, ...]
    num_logits: int

    @property
    def end_position(self) -> int:
        return self.start_position + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine needs to know of a loaded model. `widths` are query lengths that run fast."""

    vocab_size: int
    max_model_len: int
    num_slots: int
    widths: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    dtype: str


class Backend(Protocol):
    """A model with `info.num_slots` KV slots. Calls come from one thread, one at a time.

    A row's logits do not depend, in any bit, on the other rows or on how a text is cut into rows.
    """

    @property
    def info(self) -> ModelInfo: ...

    def warmup(self) -> None:
        """Get everything ready that `forward` needs, so that the first request is not slower."""
        ...

    def forward(self, rows: tuple[ForwardRow, ...]) -> torch.Tensor:
        """Run the rows, at most one per slot. Returns float32 `[sum of num_logits, vocab_size]`."""
        ...

    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        """Copy the KV of a slot's first tokens into another slot."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...
