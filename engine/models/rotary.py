"""Rotary position embedding: cosines and sines of every position, with Llama-3 and linear scaling.

Sources: Su et al. 2021 (RoFormer); the Llama 3.1 frequency scaling as published with its weights.
"""

from __future__ import annotations

import math

import torch

from engine.models.config import ModelConfig, RopeConfig


class RotaryTable:
    """`cos` and `sin` `[max_positions, 1, head_dim]`; the first half of `sin` is negated, so that
    rotating is `x * cos + roll(x, head_dim / 2) * sin`."""

    def __init__(self, config: ModelConfig, *, max_positions: int, dtype: torch.dtype) -> None:
        frequencies = _scaled_frequencies(config.rope, config.head_dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        angles = angles.repeat(1, 2).unsqueeze(1)  # [max_positions, 1, head_dim]
        sin = angles.sin()
        sin[..., : config.head_dim // 2].neg_()
        self._cos = angles.cos().to(dtype)
        self._sin = sin.to(dtype)
        self.num_positions = max_positions

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`positions [num_tokens]` to two tables `[num_tokens, 1, head_dim]`."""
        return self._cos[positions], self._sin[positions]


def _scaled_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies)
    return frequencies


def _llama3_frequencies(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated."""
    wavelengths = 2 * math.pi / frequencies
    rotations = rope.original_max_position / wavelengths
    share = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / rope.factor + share * frequencies
