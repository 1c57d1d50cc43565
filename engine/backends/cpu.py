"""The CPU backend: eager PyTorch, in bfloat16 where the processor multiplies it, else in float32.

It finds at start which kernel shapes keep every row's bits (`RowTiling`) and uses only those.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.backends.base import ForwardRow, ModelInfo
from engine.backends.cpu_kernels import CpuKernels
from engine.backends.packed_linear import supports_packing
from engine.backends.row_probe import RowProbe
from engine.backends.row_tiling import RowTiling
from engine.config import DType, KernelKind, Quantization
from engine.models.config import ModelConfig, ModelError
from engine.models.decoder import Decoder
from engine.models.weights import Weights

_CANDIDATE_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 32, 64, 128)
_WIDTHS = (1, 2, 4, 6, 8, 12, 16, 32, 64, 128)
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
        quantization: Quantization | None = None,
        kernels: KernelKind = "auto",
    ) -> None:
        config = ModelConfig.from_folder(model_path)
        self._dtype = resolve_dtype(dtype)
        self._tiling = RowTiling()
        max_positions = _context_length(config, max_model_len)
        _check_memory(config, num_slots * max_positions, self._dtype)
        chosen = CpuKernels(kernels, self._dtype)
        with torch.inference_mode(), Weights(model_path) as weights:
            self._decoder = Decoder(
                config,
                weights,
                linear=chosen.linear(quantization),
                dtype=self._dtype,
                max_positions=max_positions,
                norm=chosen.norm(),
            )
            self._attention = chosen.attention(
                config, num_slots=num_slots, max_positions=max_positions
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
        self._tiling.use(RowProbe(self._decoder).exact_counts(_CANDIDATE_COUNTS))

    @torch.inference_mode()
    def forward(self, rows: tuple[ForwardRow, ...]) -> torch.Tensor:
        tiles = self._tiling.tiles(sum(len(row.token_ids) for row in rows))
        hidden = torch.cat([self._hidden(part) for part in _cut(rows, tiles)])
        return self._wanted_logits(rows, hidden)

    @torch.inference_mode()
    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        self._attention.copy_prefix(source_slot, target_slot, num_tokens)

    def close(self) -> None:
        """Nothing to release: the memory goes with the process."""

    def _hidden(self, rows: list[ForwardRow]) -> torch.Tensor:  # [num_tokens, hidden_size]
        """One pass of the decoder over an exact number of tokens, padded if there are fewer."""
        token_ids = [token_id for row in rows for token_id in row.token_ids]
        positions = [p for row in rows for p in range(row.start_position, row.end_position)]
        num_padded = self._tiling.padded(len(token_ids))
        padding = [0] * (num_padded - len(token_ids))
        self._attention.plan(rows, num_padded)
        hidden: torch.Tensor = self._decoder(
            torch.tensor(token_ids + padding), torch.tensor(positions + padding), self._attention
        )
        return hidden[: len(token_ids)]

    def _wanted_logits(self, rows: tuple[ForwardRow, ...], hidden: torch.Tensor) -> torch.Tensor:
        wanted: list[int] = []
        end = 0
        for row in rows:
            end += len(row.token_ids)
            wanted += range(end - row.num_logits, end)
        if not wanted:
            return hidden.new_zeros(0, self.info.vocab_size, dtype=torch.float32)
        tiles = self._tiling.tiles(len(wanted))
        padding = [0] * (sum(tiles) - len(wanted))
        parts = hidden[wanted + padding].split(tiles)
        return torch.cat([self._decoder.logits(part) for part in parts])[: len(wanted)]


def _cut(rows: tuple[ForwardRow, ...], tiles: tuple[int, ...]) -> Iterator[list[ForwardRow]]:
    """Cut the rows so that their tokens, in order, fill the tiles; the last may stay short.

    A tile may see what the ones before it wrote, so a row can go on in the next.
    """
    pending = list(reversed(rows))
    for size in tiles:
        part: list[ForwardRow] = []
        while size and pending:
            row = pending.pop()
            taken, left = row.token_ids[:size], row.token_ids[size:]
            part.append(ForwardRow(row.slot_id, row.start_position, taken, num_logits=0))
            size -= len(taken)
            if left:
                start = row.start_position + len(taken)
                pending.append(ForwardRow(row.slot_id, start, left, num_logits=0))
        yield part


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
