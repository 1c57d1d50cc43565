"""Which numbers of rows a kernel may be called with so that every row keeps the same bits.

CPU libraries choose their kernel by the number of rows, and some kernels add in another order. The
bits of a call with `REFERENCE_COUNT` rows are the standard; a count is used only where it was seen
to give the same bits on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable

REFERENCE_COUNT = 16


class RowTiling:
    """Cuts any number of rows into calls of exact counts.

    With exact counts 1, 2, 4, 16 and 64, 3 rows are padded to 4, and 70 become calls of 64 and 16
    where 8 is not exact: 64, 6 padded to 16.
    """

    def __init__(self, exact_counts: Iterable[int] = ()) -> None:
        self._tiles: dict[int, tuple[int, ...]] = {}
        self.use(exact_counts)

    def use(self, exact_counts: Iterable[int]) -> None:
        """Change the exact counts, for everyone who holds this tiling.

        Counts above the reference are multiples of it, so that padding twice changes nothing.
        """
        self.exact_counts = tuple(sorted({*exact_counts, REFERENCE_COUNT}))
        assert all(n < REFERENCE_COUNT or n % REFERENCE_COUNT == 0 for n in self.exact_counts)
        self._tiles.clear()

    def tiles(self, num_rows: int) -> tuple[int, ...]:
        """The calls for `num_rows` rows, largest first; their sum is `padded(num_rows)`."""
        if num_rows not in self._tiles:
            self._tiles[num_rows] = self._cut(num_rows)
        return self._tiles[num_rows]

    def padded(self, num_rows: int) -> int:
        return sum(self.tiles(num_rows))

    def _cut(self, num_rows: int) -> tuple[int, ...]:
        tiles: list[int] = []
        while num_rows >= REFERENCE_COUNT:
            largest = max(count for count in self.exact_counts if count <= num_rows)
            tiles.append(largest)
            num_rows -= largest
        if num_rows:
            tiles.append(min(count for count in self.exact_counts if count >= num_rows))
        return tuple(tiles)
