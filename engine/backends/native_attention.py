"""Attention over contiguous KV slots by our own kernel (`native/attention.cpp`).

The same bits for any batch and any width, by construction: nothing has to be probed or padded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.backends.base import ForwardRow
from engine.backends.slot_attention import untouched_zeros
from engine.models.config import ModelConfig

_LANES = 16
_MAX_QUERIES = 6
_MAX_HEAD_DIM = 256


class _Model(ctypes.Structure):
    _fields_ = [
        ("group_size", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("max_positions", ctypes.c_int32),
        ("sliding_window", ctypes.c_int32),
        ("scale", ctypes.c_float),
    ]


def supports_native(library: ctypes.CDLL, config: ModelConfig) -> bool:
    is_fitting = config.head_dim % _LANES == 0 and config.head_dim <= _MAX_HEAD_DIM
    return is_fitting and bool(library.tandem_avx512_supported())


class NativeSlotAttention:
    """The KV cache of all layers, and attention for the rows that `plan` was told of.

    Keys are `[slot, head, block, dim, 16 positions]`, values `[slot, head, position, dim]`.
    """

    def __init__(
        self,
        config: ModelConfig,
        library: ctypes.CDLL,
        *,
        num_slots: int,
        max_positions: int,
        dtype: torch.dtype,
    ) -> None:
        self._library = library
        self._is_bfloat16 = int(dtype == torch.bfloat16)
        self._group_size = config.num_heads // config.num_kv_heads
        num_blocks = -(-max_positions // _LANES)
        self._model = _Model(
            self._group_size,
            config.num_kv_heads,
            config.head_dim,
            num_blocks * _LANES,
            config.sliding_window or 0,
            config.head_dim**-0.5,
        )
        shape = (num_slots, config.num_kv_heads, num_blocks, _LANES * config.head_dim)
        self._keys = [untouched_zeros(shape, dtype) for _ in range(config.num_layers)]
        self._values = [untouched_zeros(shape, dtype) for _ in range(config.num_layers)]
        self._tokens = np.zeros((0, 2), np.int32)
        self._tasks = np.zeros((0, 5), np.int32)

    def plan(self, rows: Sequence[ForwardRow], num_padded_tokens: int) -> None:  # noqa: ARG002
        """Prepare for a forward over the tokens of `rows`, in order; padding is not computed."""
        self._tokens = _table(
            (row.slot_id, position)
            for row in rows
            for position in range(row.start_position, row.end_position)
        )
        self._tasks = _table(self._cut(rows))

    def __call__(
        self,
        layer_index: int,
        query: torch.Tensor,  # [num_tokens, group_size, num_kv_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, group_size * num_kv_heads * head_dim]
        num_tokens = len(self._tokens)
        output = query.new_empty(query.shape[0], query[0].numel())
        output[num_tokens:] = 0
        self._library.tandem_attend(
            ctypes.addressof(self._model),
            self._is_bfloat16,
            query.data_ptr(),
            query.stride(0),
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
            self._keys[layer_index].data_ptr(),
            self._values[layer_index].data_ptr(),
            self._tokens.ctypes.data,
            num_tokens,
            self._tasks.ctypes.data,
            len(self._tasks),
            output.data_ptr(),
        )
        return output

    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        """Whole blocks: what is behind the tokens is written again before it is read."""
        num_blocks = -(-num_tokens // _LANES)
        for cache in (*self._keys, *self._values):
            cache[target_slot, :, :num_blocks] = cache[source_slot, :, :num_blocks]

    def _cut(self, rows: Sequence[ForwardRow]) -> Iterator[tuple[int, ...]]:
        """Slot, first token, start position, first query, number of queries of each task."""
        first_token = 0
        for row in rows:
            num_queries = len(row.token_ids) * self._group_size
            for first in range(0, num_queries, _MAX_QUERIES):
                num = min(_MAX_QUERIES, num_queries - first)
                yield row.slot_id, first_token, row.start_position, first, num
            first_token += len(row.token_ids)


def _table(entries: Iterator[tuple[int, ...]]) -> npt.NDArray[np.int32]:
    return np.array(list(entries), dtype=np.int32)
