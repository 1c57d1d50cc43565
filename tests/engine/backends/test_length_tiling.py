"""Length tiling: any KV length is rounded up to whole blocks and an exact end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.length_tiling import LengthTiling


@pytest.mark.parametrize(
    ("length", "padded"),
    [(1, 64), (64, 64), (65, 128), (100, 128), (300, 512), (512, 512), (530, 576), (1024, 1024)],
)
def test_a_length_ends_at_an_exact_end_of_its_block(length: int, padded: int) -> None:
    assert LengthTiling(512, [64, 128]).padded(length) == padded


@given(ends=st.sets(st.integers(1, 511)), length=st.integers(1, 3000))
def test_lengths_are_covered_within_their_block(ends: set[int], length: int) -> None:
    padded = LengthTiling(512, ends).padded(length)
    assert length <= padded <= -(-length // 512) * 512
    assert padded % 512 in {0, *ends}
