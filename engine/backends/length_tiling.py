"""Which KV lengths the attention kernel may be called with so that every query keeps its bits.

Masked keys add exact zeros, but the length decides how a kernel cuts its sums. Whole blocks are
safe; a shorter end is used where it was seen to give the bits of a whole block.
"""

from __future__ import annotations

from collections.abc import Iterable


class LengthTiling:
    """With blocks of 512 and exact ends 64 and 128: 100 becomes 128, 300 becomes 512, 530 becomes
    576."""

    def __init__(self, block: int, exact_ends: Iterable[int] = ()) -> None:
        self.block = block
        self.exact_ends = tuple(sorted({*exact_ends, block}))

    def whole_blocks(self, length: int) -> int:
        """Room for every padded length up to `length`."""
        return -(-length // self.block) * self.block

    def padded(self, length: int) -> int:
        whole_blocks, end = divmod(length, self.block)
        if end == 0:
            return length
        return whole_blocks * self.block + min(e for e in self.exact_ends if e >= end)
