"""Attention over contiguous KV slots on the CPU, with the same bits for any batch and any width.

Keys and values of a slot lie side by side, so a run of neighbouring slots is read in place. The
bits are kept by using only kernel shapes that a probe found exact: at most `REFERENCE_COUNT` query
positions in a call, and KV lengths that are rounded up.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.backends.attention_kernel import attend, causal_mask
from engine.backends.attention_probe import probe_attention
from engine.backends.base import ForwardRow
from engine.backends.row_tiling import REFERENCE_COUNT
from engine.models.config import ModelConfig


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
    kv_length: int
    mask: torch.Tensor  # [num_rows, 1, padded width * group_size, kv_length]


@dataclass(frozen=True, slots=True)
class _Plan:
    write_index: torch.Tensor  # [padded num_tokens], flat position in the cache
    calls: tuple[_Call, ...]


class SlotAttention:
    """The KV cache of all layers, and attention for the rows that `plan` was told of.

    At construction it finds the kernel shapes that are exact on this machine. The last slot is the
    trash slot: padding tokens write there and are never read.
    """

    def __init__(
        self, config: ModelConfig, *, num_slots: int, max_positions: int, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._lengths, self._widths = probe_attention(
            config, max_positions=max_positions, dtype=dtype
        )
        self._max_positions = self._lengths.whole_blocks(max_positions)
        shape = (num_slots + 1, self._max_positions, config.num_kv_heads, config.head_dim)
        self._trash_index = num_slots * self._max_positions
        self._keys = [untouched_zeros(shape, dtype) for _ in range(config.num_layers)]
        self._values = [untouched_zeros(shape, dtype) for _ in range(config.num_layers)]
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

    def _attend(
        self, call: _Call, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:  # [num_rows * width, num_heads * head_dim]
        run = call.run
        slots = slice(run.first_slot, run.first_slot + run.num_rows)
        output = attend(
            query.unflatten(0, (run.num_rows, call.width)),
            keys[slots, : call.kv_length],
            values[slots, : call.kv_length],
            call.mask,
        )
        return output.flatten(0, 1)

    def _calls(self, run: _Run) -> Iterator[_Call]:
        for offset in range(0, run.width, REFERENCE_COUNT):
            yield self._call(run, offset, min(REFERENCE_COUNT, run.width - offset))

    def _call(self, run: _Run, offset: int, width: int) -> _Call:
        longest = max(run.start_positions) + offset + width
        kv_length = self._lengths.padded(longest)
        mask = causal_mask(
            tuple(start + offset for start in run.start_positions),
            width=width,
            padded_width=self._widths.padded(width),
            kv_length=kv_length,
            group_size=self._config.num_heads // self._config.num_kv_heads,
            sliding_window=self._config.sliding_window,
            dtype=self._dtype,
        )
        return _Call(run, offset, width, kv_length, mask)


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take memory only where they are written to, unlike torch's own."""
    buffer = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


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
