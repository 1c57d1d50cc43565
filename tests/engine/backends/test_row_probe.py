"""The probe finds what bfloat16 hides: another last bit of a float32 sum in calls of one size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from engine.backends.packed_linear import PlainLinear
from engine.backends.row_probe import RowProbe
from engine.backends.row_tiling import REFERENCE_COUNT
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder, rms_norm
from engine.models.weights import Weights

COUNTS = [1, 2, 3, 16, 32]
EPSILON_32 = 2**-23


class ExactLinear(PlainLinear):
    """Adds in float32, always in the same order, and rounds at the end."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.float(), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x).to(x.dtype)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return (self.product(x) + residual.float()).to(x.dtype)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        padding = -x.shape[0] % REFERENCE_COUNT
        parts = F.pad(x.float(), (0, 0, 0, padding)).split(REFERENCE_COUNT)
        return torch.cat([F.linear(part, self._weight) for part in parts])[: x.shape[0]]


class LinearWithAnotherSum(ExactLinear):
    """Off by one last bit of float32 in calls of `count` rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, count: int) -> None:
        super().__init__(weight, bias)
        self._count = count

    def product(self, x: torch.Tensor) -> torch.Tensor:
        error = EPSILON_32 if x.shape[0] == self._count else 0.0
        return super().product(x) * (1 + error)


def norm_with_another_sum(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, *, count: int
) -> torch.Tensor:
    error = EPSILON_32 if x.shape[0] == count else 0.0
    return (rms_norm(x.float(), weight.float(), epsilon) * (1 + error)).to(x.dtype)


@pytest.fixture(scope="module")
def decoder(model_dir: Path) -> Callable[..., Decoder]:
    """Makes the first layers of the real model in bfloat16, with the parts that are given."""
    config = dataclasses.replace(ModelConfig.from_folder(model_dir), num_layers=2)

    def make(**parts: object) -> Decoder:
        with torch.inference_mode(), Weights(model_dir) as weights:
            given = {"linear": ExactLinear, **parts}
            return Decoder(config, weights, dtype=torch.bfloat16, max_positions=128, **given)

    return make


@torch.inference_mode()
def test_counts_that_change_no_bit_are_exact(decoder: Callable[..., Decoder]) -> None:
    assert RowProbe(decoder()).exact_counts(COUNTS) == COUNTS


@pytest.mark.parametrize("name", ["qkv", "output", "gate", "up", "down"])
@torch.inference_mode()
def test_a_layer_that_adds_in_another_order_is_found(
    decoder: Callable[..., Decoder], name: str
) -> None:
    model = decoder()
    layer = model.layers[0]
    assert isinstance(getattr(layer, name), ExactLinear)
    weight = getattr(layer, name)._weight
    setattr(layer, name, LinearWithAnotherSum(weight, None, count=1))
    assert RowProbe(model).exact_counts(COUNTS) == [2, 3, 16, 32]


@torch.inference_mode()
def test_a_head_that_adds_in_another_order_is_found(decoder: Callable[..., Decoder]) -> None:
    model = decoder()
    assert isinstance(model.head, ExactLinear)
    model.head = LinearWithAnotherSum(model.head._weight, None, count=2)
    assert RowProbe(model).exact_counts(COUNTS) == [1, 3, 16, 32]


@torch.inference_mode()
def test_a_norm_that_adds_in_another_order_is_found(decoder: Callable[..., Decoder]) -> None:
    model = decoder(norm=partial(norm_with_another_sum, count=32))
    assert RowProbe(model).exact_counts(COUNTS) == [1, 2, 3, 16]
