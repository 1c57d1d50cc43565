"""The CPU backend: eager PyTorch, in bfloat16 where the processor multiplies it, else in float32.

It finds at start which kernel shapes keep every row's bits (`RowTiling`) and uses only those.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.backends.base import ForwardRow, ModelInfo
from engine.backends.packed_linear import PackedLinear, PlainLinear, supports_packing
from engine.backends.row_tiling import RowTiling
from engine.backends.slot_attention import SlotAttention
from engine.config import DType
from engine.models.config import ModelConfig, ModelError
from engine.models.decoder import Decoder
from engine.models.weights import Weights

_CANDIDATE_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 32, 64, 128)
_MIN_PROBE_ROWS = 128
_MIN_PROBE_VALUES = 2**16
_WIDTHS = (1, 2, 4, 6, 8, 12, 16)
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}


class CpuBackend:
    """A decoder and its KV slots in this process's memory."""

    def __init__(
        self,
        model_path: Path,
        *,
        dtype: DType = "auto",
        num_slots: int = 8,
        max_model_len: int | None = None,
    ) -> None:
        config = ModelConfig.from_folder(model_path)
        self._dtype = resolve_dtype(dtype)
        self._linear_tiling = RowTiling()
        max_positions = _context_length(config, max_model_len)
        _check_memory(config, num_slots * max_positions, self._dtype)
        linear = PackedLinear if supports_packing(self._dtype) else PlainLinear
        with torch.inference_mode(), Weights(model_path) as weights:
            self._decoder = Decoder(
                config,
                weights,
                linear=lambda weight, bias: linear(weight, bias, tiling=self._linear_tiling),
                dtype=self._dtype,
                max_positions=max_positions,
            )
            self._attention = SlotAttention(
                config, num_slots=num_slots, max_positions=max_positions, dtype=self._dtype
            )
        self.info = ModelInfo(
            vocab_size=config.vocab_size,
            max_model_len=max_positions,
            num_slots=num_slots,
            widths=_WIDTHS,
            eos_token_ids=config.eos_token_ids,
            dtype=str(self._dtype).removeprefix("torch."),
        )

    @torch.inference_mode()
    def warmup(self) -> None:
        """Probe which shapes are exact; this also makes oneDNN build its kernels for them."""
        probe = _LinearProbe(self._decoder, self._linear_tiling)
        self._linear_tiling.use([count for count in _CANDIDATE_COUNTS if probe.is_exact(count)])

    @torch.inference_mode()
    def forward(self, rows: tuple[ForwardRow, ...]) -> torch.Tensor:
        token_ids = [token_id for row in rows for token_id in row.token_ids]
        positions = [p for row in rows for p in range(row.start_position, row.end_position)]
        num_padded = self._linear_tiling.padded(len(token_ids))
        padding = [0] * (num_padded - len(token_ids))
        self._attention.plan(rows, num_padded)
        hidden = self._decoder(
            torch.tensor(token_ids + padding), torch.tensor(positions + padding), self._attention
        )
        return self._wanted_logits(rows, hidden)

    @torch.inference_mode()
    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        self._attention.copy_prefix(source_slot, target_slot, num_tokens)

    def close(self) -> None:
        """Nothing to release: the memory goes with the process."""

    def _wanted_logits(self, rows: tuple[ForwardRow, ...], hidden: torch.Tensor) -> torch.Tensor:
        wanted: list[int] = []
        end = 0
        for row in rows:
            end += len(row.token_ids)
            wanted += range(end - row.num_logits, end)
        if not wanted:
            return hidden.new_zeros(0, self.info.vocab_size, dtype=torch.float32)
        if len(wanted) == hidden.shape[0]:
            return self._decoder.logits(hidden)
        padding = [0] * (self._linear_tiling.padded(len(wanted)) - len(wanted))
        return self._decoder.logits(hidden[wanted + padding])[: len(wanted)]


class _LinearProbe:
    """Compares one layer and the head, called with some number of rows, with the reference."""

    def __init__(self, decoder: Decoder, tiling: RowTiling) -> None:
        self._decoder = decoder
        self._tiling = tiling
        # In bfloat16 few values show another summation, so there must be enough of them.
        num_chunks = -(-_MIN_PROBE_VALUES // (_MIN_PROBE_ROWS * decoder.config.hidden_size))
        self._num_rows = num_chunks * _MIN_PROBE_ROWS
        generator = torch.Generator().manual_seed(0)
        self._input_ids = torch.randint(
            decoder.config.vocab_size, (self._num_rows,), generator=generator
        )
        self._reference = self._run(0, self._num_rows, exact_counts=())

    def is_exact(self, count: int) -> bool:
        return all(
            torch.equal(
                self._run(start, count, exact_counts=(count,)),
                self._reference[start : start + count],
            )
            for start in range(0, self._num_rows - count + 1, count)
        )

    def _run(self, start: int, count: int, *, exact_counts: tuple[int, ...]) -> torch.Tensor:
        self._tiling.use(exact_counts)
        input_ids = self._input_ids[start : start + count]
        positions = torch.zeros_like(input_ids)
        hidden = self._decoder(input_ids, positions, _attend_to_self, num_layers=1)
        return self._decoder.logits(hidden)


def _attend_to_self(
    _layer_index: int, query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor
) -> torch.Tensor:
    return query.flatten(1)


def _context_length(config: ModelConfig, max_model_len: int | None) -> int:
    longest = config.max_position_embeddings
    if max_model_len is not None and max_model_len > longest:
        raise ModelError(f"max_model_len {max_model_len} is above the model's own {longest}")
    return max_model_len or longest


def _check_memory(config: ModelConfig, num_positions: int, dtype: torch.dtype) -> None:
    """The KV cache takes memory only as it fills, so it must fit when it is full."""
    per_position = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    needed = num_positions * per_position / 2**30
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if needed > available:
        raise ModelError(
            f"the KV cache would grow to {needed:.1f} GiB, and this machine has {available:.1f}: "
            "lower max_model_len or max_num_seqs"
        )


def resolve_dtype(dtype: DType) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if _multiplies_bfloat16() else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def _multiplies_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return supports_packing(torch.bfloat16) and not _BFLOAT16_FLAGS.isdisjoint(flags.split())
