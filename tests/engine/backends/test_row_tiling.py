"""Row tiling: any number of rows becomes calls of exact counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.row_tiling import REFERENCE_COUNT, RowTiling

# Above the reference, only its multiples can be cut so that padding is done once.
exact_counts = st.sets(st.integers(1, REFERENCE_COUNT) | st.sampled_from([32, 48, 64, 128]))


@pytest.mark.parametrize(
    ("counts", "num_rows", "tiles"),
    [
        pytest.param([1, 2, 4, 16, 64], 3, (4,), id="padded-to-the-next"),
        pytest.param([1, 2, 4, 16, 64], 4, (4,), id="exact"),
        pytest.param([1, 2, 4, 16, 64], 5, (16,), id="padded-to-the-reference"),
        pytest.param([1, 2, 4, 16, 64], 70, (64, 16), id="remainder-padded"),
        pytest.param([1, 2, 4, 16, 64], 66, (64, 2), id="remainder-exact"),
        pytest.param([1, 2, 4, 16, 64], 35, (16, 16, 4), id="several-of-the-same"),
        pytest.param([], 1, (16,), id="only-the-reference"),
        pytest.param([], 33, (16, 16, 16), id="only-the-reference-33"),
        pytest.param([1], 0, (), id="no-rows"),
    ],
)
def test_rows_are_cut_into_exact_counts(
    counts: list[int], num_rows: int, tiles: tuple[int, ...]
) -> None:
    assert RowTiling(counts).tiles(num_rows) == tiles


@given(counts=exact_counts, num_rows=st.integers(0, 500))
def test_tiles_are_exact_cover_all_rows_and_waste_less_than_one_reference(
    counts: set[int], num_rows: int
) -> None:
    tiling = RowTiling(counts)
    tiles = tiling.tiles(num_rows)
    assert set(tiles) <= {*counts, REFERENCE_COUNT}
    assert tiling.padded(num_rows) == sum(tiles)
    assert num_rows <= sum(tiles) < num_rows + REFERENCE_COUNT


@given(counts=exact_counts, num_rows=st.integers(0, 500))
def test_a_padded_number_of_rows_is_not_padded_again(counts: set[int], num_rows: int) -> None:
    tiling = RowTiling(counts)
    assert tiling.padded(tiling.padded(num_rows)) == tiling.padded(num_rows)


def test_new_exact_counts_replace_the_old_ones() -> None:
    tiling = RowTiling([3])
    assert tiling.tiles(3) == (3,)
    tiling.use([4])
    assert tiling.exact_counts == (4, REFERENCE_COUNT)
    assert tiling.tiles(3) == (4,)
