"""The tokens that may come next, one bit each, as llguidance computes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MINUS_INFINITY = np.float32(-np.inf).view(np.int32)


class TokenMask:
    """A mask over a vocabulary; the bits behind it mean nothing."""

    def __init__(self, packed: bytes, vocab_size: int) -> None:
        self._packed = packed
        self._vocab_size = vocab_size

    def __contains__(self, token_id: int) -> bool:
        return bool(self._packed[token_id >> 3] >> (token_id & 7) & 1)

    def as_bools(self) -> npt.NDArray[np.bool_]:  # [vocab_size]
        packed = np.frombuffer(self._packed, np.uint8)
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def forbid_others(self, logits: npt.NDArray[np.float32]) -> None:  # [vocab_size]
        """Set the logits of all other tokens to -inf."""
        # On the bits of the numbers: to choose token by token takes up to seven times as long.
        bits = logits.view(np.int32)
        kept = np.negative(self.as_bools().view(np.int8)).astype(np.int32)
        bits &= kept
        forbidden = np.invert(kept, out=kept)
        forbidden &= _MINUS_INFINITY
        bits |= forbidden
