"""The tokens of the largest logits, without sorting the vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.sampling.logits import Logits

_NUM_BLOCKS = 384

TokenIds = npt.NDArray[np.int64]


def top_token_ids(logits: Logits, num_top: int) -> TokenIds:
    """The `num_top` of `[vocab_size]` that are largest, and all that equal the last: ascending ids.

    Example: of `3 1 2 2` the top 2 are `0 2 3`.
    """
    if num_top >= logits.shape[0]:
        return np.arange(logits.shape[0])
    token_ids = np.flatnonzero(logits >= _lower_bound(logits, num_top))
    values = logits[token_ids]
    if values.shape[0] < num_top:
        return np.flatnonzero(logits >= _nth_largest(logits, num_top))
    return token_ids[values >= _nth_largest(values, num_top)]


def _lower_bound(logits: Logits, num_top: int) -> np.float32:
    """A value that at least `num_top` logits reach, and few more: so many blocks' maxima do."""
    block_size = logits.shape[0] // _NUM_BLOCKS
    if num_top > _NUM_BLOCKS // 2 or block_size < 2:
        return _nth_largest(logits, num_top)
    blocks = logits[: block_size * _NUM_BLOCKS].reshape(block_size, _NUM_BLOCKS)
    return _nth_largest(blocks.max(axis=0), num_top)


def _nth_largest(values: Logits, num_top: int) -> np.float32:
    largest: np.float32 = np.partition(values, -num_top)[-num_top]
    return largest
