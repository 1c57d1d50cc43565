"""One mask in its three forms: bit by bit, as booleans, and applied to logits."""

from __future__ import annotations

import numpy as np
import pytest

from engine.grammar.token_mask import TokenMask


@pytest.mark.parametrize("vocab_size", [1, 8, 31, 300, 1001])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_mask_allows_the_same_tokens_in_all_forms(vocab_size: int, share: float) -> None:
    rng = np.random.default_rng(0)
    expected = rng.random(vocab_size) < share
    padded = np.pad(expected, (0, 64), constant_values=True)
    mask = TokenMask(np.packbits(padded, bitorder="little").tobytes(), vocab_size)
    assert [token_id in mask for token_id in range(vocab_size)] == expected.tolist()
    assert mask.as_bools().tolist() == expected.tolist()
    logits = rng.normal(size=vocab_size).astype(np.float32)
    logits[::7] = rng.choice([np.nan, -np.inf, np.inf, -0.0], size=len(logits[::7]))
    masked = logits.copy()
    mask.forbid_others(masked)
    assert np.array_equal(masked, np.where(expected, logits, -np.inf), equal_nan=True)
