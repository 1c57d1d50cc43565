"""Finds the shapes in which the attention kernel gives every query the same bits on this machine.

Random data in many shapes, compared with the reference: `REFERENCE_COUNT` query positions and whole
blocks of keys. A different order of summation shows in some of the outputs, and in most of the
float32 sums of the softmax that the kernel gives beside them.
"""

from __future__ import annotations

import torch

from engine.backends.attention_kernel import attend_with_logsumexp, causal_mask
from engine.backends.length_tiling import LengthTiling
from engine.backends.row_tiling import REFERENCE_COUNT, RowTiling
from engine.models.config import ModelConfig

_BLOCKS = (512, 1024, 2048)
_END_STEP = 64
_WIDTHS = (1, 2, 4, 8)
_MIN_OUTPUTS_PER_TILE = 16_384


class AttentionProbe:
    """Results are tilings for `SlotAttention`; `max_positions` is how long a slot can get."""

    def __init__(self, config: ModelConfig, *, max_positions: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._max_positions = max_positions
        self._group_size = config.num_heads // config.num_kv_heads
        outputs_per_row = REFERENCE_COUNT * config.num_heads * config.head_dim
        # In bfloat16 only few outputs show a difference, so there must be enough of them.
        self._num_rows = 2 * -(-_MIN_OUTPUTS_PER_TILE // (2 * outputs_per_row))
        heads = (config.num_kv_heads, config.head_dim)
        generator = torch.Generator().manual_seed(0)
        kv_shape = (self._num_rows, 2 * _BLOCKS[-1], *heads)
        query_shape = (self._num_rows, REFERENCE_COUNT, self._group_size, *heads)
        self._keys = torch.randn(kv_shape, generator=generator).to(dtype)
        self._values = torch.randn(kv_shape, generator=generator).to(dtype)
        self._query = torch.randn(query_shape, generator=generator).to(dtype)

    def length_tiling(self) -> LengthTiling:
        """The smallest block whose repetition changes nothing, and the ends that equal it."""
        for block in _BLOCKS:
            if block >= self._max_positions or self._is_exact_block(block):
                ends = range(_END_STEP, block, _END_STEP)
                return LengthTiling(block, [e for e in ends if self._is_exact_end(e, block)])
        return LengthTiling(self._max_positions)

    def width_tiling(self, lengths: LengthTiling) -> RowTiling:
        """The numbers of query positions in one call that equal the reference."""
        return RowTiling(width for width in _WIDTHS if self._is_exact_width(width, lengths))

    def _is_exact_block(self, block: int) -> bool:
        return all(
            torch.equal(self._attend(start, block), self._attend(start, 2 * block))
            for start in range(0, block, REFERENCE_COUNT)
        )

    def _is_exact_end(self, end: int, block: int) -> bool:
        """In the first block, and behind it where slots are that long."""
        offsets = [0] if block >= self._max_positions else [0, block]
        return all(
            torch.equal(
                self._attend(offset + start, offset + end),
                self._attend(offset + start, offset + block),
            )
            for offset in offsets
            for start in range(0, end, REFERENCE_COUNT)
        )

    def _is_exact_width(self, width: int, lengths: LengthTiling) -> bool:
        starts = (0, 33, 250, lengths.block - 5, lengths.block + 100)
        return all(self._is_exact_width_at(width, start, lengths) for start in starts)

    def _is_exact_width_at(self, width: int, start: int, lengths: LengthTiling) -> bool:
        reference = self._attend(start, lengths.padded(start + REFERENCE_COUNT))
        for offset in range(0, REFERENCE_COUNT, width):
            kv_length = lengths.padded(start + offset + width)
            expected = reference[:, offset : offset + width]
            for num_rows in (1, self._num_rows):
                actual = self._attend(
                    start, kv_length, num_rows=num_rows, offset=offset, width=width
                )
                if not torch.equal(actual, expected[:num_rows]):
                    return False
        return True

    def _attend(
        self,
        start: int,
        kv_length: int,
        *,
        num_rows: int | None = None,
        offset: int = 0,
        width: int = REFERENCE_COUNT,
    ) -> torch.Tensor:
        """Query positions `offset` to `offset + width` of a tile that begins at `start`:
        `[num_rows, width, outputs and logsumexp]`."""
        num_rows = num_rows or self._num_rows
        mask = causal_mask(
            (start + offset,) * num_rows,
            width=width,
            padded_width=width,
            kv_length=kv_length,
            group_size=self._group_size,
            sliding_window=None,
            dtype=self._dtype,
        )
        rows = slice(0, num_rows)
        query = self._query[rows, offset : offset + width]
        output, logsumexp = attend_with_logsumexp(
            query, self._keys[rows, :kv_length], self._values[rows, :kv_length], mask
        )
        return torch.cat([output.float(), logsumexp], dim=2)


def probe_attention(
    config: ModelConfig, *, max_positions: int, dtype: torch.dtype
) -> tuple[LengthTiling, RowTiling]:
    probe = AttentionProbe(config, max_positions=max_positions, dtype=dtype)
    lengths = probe.length_tiling()
    return lengths, probe.width_tiling(lengths)
