"""Attention over contiguous KV slots on the CPU, with the same bits for any batch and any width.

Keys and values of a slot lie side by side, so a run of neighbouring slots is read in place. Three
things keep the bits: lengths are rounded up to `KV_TILE` (masked keys add exact zeros), a call has
at most `REFERENCE_COUNT` query positions, and only counts that a probe found exact are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.backends.base import ForwardRow
from engine.backends.row_tiling import REFERENCE_COUNT, RowTiling
from engine.models.config import ModelConfig

KV_TILE = 64
_PROBE_STARTS = (0, 37, 500, 1100)
_PROBE_WIDTHS = (1, 2, 4, 8)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows in neighbouring slots with the same number of new tokens: one kernel call per tile."""

    first_slot: int
    first_token: int
    width: int
    start_positions: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return len(self.start_positions)

    def accepts(self, row: ForwardRow) -> bool:
        """Whether the row can join: next slot, same width, little padding by the longest row."""
        longest = max(row.start_position, *self.start_positions)
        shortest = min(row.start_position, *self.start_positions)
        return (
            row.slot_id == self.first_slot + self.num_rows
            and len(row.token_ids) == self.width
            and longest - shortest <= max(256, shortest)
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """One kernel call: some query positions of each row of a run."""

    run: _Run
    offset: int
    width: int
    padded_width: int
    kv_length: int
    mask: torch.Tensor  # [num_rows, 1, padded_width * group_size, kv_length]


@dataclass(frozen=True, slots=True)
class _Plan:
    write_index: torch.Tensor  # [padded num_tokens], flat position in the cache
    calls: tuple[_Call, ...]


class SlotAttention:
    """The KV cache of all layers, and attention for the rows that `plan` was told of.

    The last slot is the trash slot: padding tokens write there and are never read.
    """

    def __init__(
        self, config: ModelConfig, *, num_slots: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._max_positions = round_up(max_positions, KV_TILE)
        shape = (num_slots + 1, self._max_positions, config.num_kv_heads, config.head_dim)
        self._trash_index = num_slots * self._max_positions
        self._keys = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
        self._values = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
        self._tiling = RowTiling()
        self._plan = _Plan(torch.empty(0, dtype=torch.long), ())

    def plan(self, rows: Sequence[ForwardRow], num_padded_tokens: int) -> None:
        """Prepare for a forward over the tokens of `rows`, in order, padded to a total."""
        index = [
            row.slot_id * self._max_positions + position
            for row in rows
            for position in range(row.start_position, row.end_position)
        ]
        index += [self._trash_index] * (num_padded_tokens - len(index))
        calls = tuple(call for run in _runs(rows) for call in self._calls(run))
        self._plan = _Plan(torch.tensor(index, dtype=torch.long), calls)

    def __call__(
        self,
        layer_index: int,
        query: torch.Tensor,  # [num_tokens, group_size, num_kv_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, group_size * num_kv_heads * head_dim]
        keys, values = self._keys[layer_index], self._values[layer_index]
        keys.flatten(0, 1).index_copy_(0, self._plan.write_index, key)
        values.flatten(0, 1).index_copy_(0, self._plan.write_index, value)
        num_tokens = query.shape[0]
        calls = self._plan.calls
        if len(calls) == 1 and calls[0].run.num_rows * calls[0].width == num_tokens:
            return self._attend(calls[0], query, keys, values)
        output = query.new_zeros(num_tokens, query[0].numel())
        for call in calls:
            tokens = _token_index(call)
            output[tokens] = self._attend(call, query[tokens], keys, values)
        return output

    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        for cache in (*self._keys, *self._values):
            cache[target_slot, :num_tokens] = cache[source_slot, :num_tokens]

    def probe(self) -> None:
        """Find the numbers of query positions that keep the bits of the reference."""
        self._tiling = RowTiling(width for width in _PROBE_WIDTHS if self._is_exact(width))

    def _attend(
        self, call: _Call, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:  # [num_rows * width, num_heads * head_dim]
        run, width = call.run, call.width
        slots = slice(run.first_slot, run.first_slot + run.num_rows)
        query = query.unflatten(0, (run.num_rows, width))
        if call.padded_width > width:
            query = F.pad(query, (0, 0) * 3 + (0, call.padded_width - width))
        output: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query.flatten(1, 2).transpose(
                1, 2
            ),  # [num_rows, num_kv_heads, width * group, head_dim]
            keys[slots, : call.kv_length].transpose(1, 2),
            values[slots, : call.kv_length].transpose(1, 2),
            attn_mask=call.mask,
        )[0].transpose(1, 2)
        group_size = self._config.num_heads // self._config.num_kv_heads
        return output[:, : width * group_size].reshape(run.num_rows * width, -1)

    def _calls(self, run: _Run) -> Iterator[_Call]:
        for offset in range(0, run.width, REFERENCE_COUNT):
            width = min(REFERENCE_COUNT, run.width - offset)
            yield self._call(run, offset, width, self._tiling.padded(width))

    def _call(self, run: _Run, offset: int, width: int, padded_width: int) -> _Call:
        kv_length = round_up(max(run.start_positions) + offset + width, KV_TILE)
        starts = torch.tensor(run.start_positions) + offset  # [num_rows]
        steps = torch.arange(padded_width).clamp(max=width - 1)
        query_positions = (starts[:, None] + steps)[..., None]  # [num_rows, padded_width, 1]
        kv_positions = torch.arange(kv_length)
        hidden = kv_positions > query_positions
        if self._config.sliding_window is not None:
            hidden |= kv_positions <= query_positions - self._config.sliding_window
        mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
        group_size = self._config.num_heads // self._config.num_kv_heads
        mask = mask.repeat_interleave(group_size, dim=1).unsqueeze(1)
        return _Call(run, offset, width, padded_width, kv_length, mask)

    def _is_exact(self, width: int) -> bool:
        """Compare `width` positions at a time, in one and in two rows, with the reference."""
        generator = torch.Generator().manual_seed(width)
        return all(
            self._is_exact_at(width, start, generator)
            for start in _PROBE_STARTS
            if start + REFERENCE_COUNT <= self._max_positions
        )

    def _is_exact_at(self, width: int, start: int, generator: torch.Generator) -> bool:
        config = self._config
        group_size = config.num_heads // config.num_kv_heads
        kv_shape = (2, self._keys[0].shape[1], config.num_kv_heads, config.head_dim)
        keys = torch.randn(kv_shape, generator=generator).to(self._dtype)
        values = torch.randn(kv_shape, generator=generator).to(self._dtype)
        query = torch.randn(REFERENCE_COUNT, group_size, *kv_shape[2:], generator=generator).to(
            self._dtype
        )
        whole = _Run(0, 0, REFERENCE_COUNT, (start,))
        reference = self._attend(
            self._call(whole, 0, REFERENCE_COUNT, REFERENCE_COUNT), query, keys, values
        )
        keys[1], values[1] = keys[0], values[0]
        for offset in range(0, REFERENCE_COUNT, width):
            part = query[offset : offset + width]
            expected = reference[offset : offset + width]
            for num_rows in (1, 2):
                run = _Run(0, 0, width, (start + offset,) * num_rows)
                call = self._call(run, 0, width, width)
                actual = self._attend(call, part.repeat(num_rows, 1, 1, 1), keys, values)
                if not torch.equal(actual, expected.repeat(num_rows, 1)):
                    return False
        return True


def _runs(rows: Sequence[ForwardRow]) -> list[_Run]:
    runs: list[_Run] = []
    num_tokens = 0
    for row in rows:
        if runs and runs[-1].accepts(row):
            last = runs[-1]
            starts = (*last.start_positions, row.start_position)
            runs[-1] = _Run(last.first_slot, last.first_token, last.width, starts)
        else:
            runs.append(_Run(row.slot_id, num_tokens, len(row.token_ids), (row.start_position,)))
        num_tokens += len(row.token_ids)
    return runs


def _token_index(call: _Call) -> slice | torch.Tensor:
    """Where the call's tokens stand in the flat list: a slice, but for tiles of several rows."""
    run = call.run
    if run.num_rows == 1 or call.width == run.width:
        first = run.first_token + call.offset
        return slice(first, first + run.num_rows * call.width)
    rows = torch.arange(run.num_rows)[:, None] * run.width
    return (run.first_token + call.offset + rows + torch.arange(call.width)).flatten()
