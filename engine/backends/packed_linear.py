"""Linear layers for the CPU whose rows keep their bits whatever else is in the call.

Weights are packed once for oneDNN, which also fuses the operation behind the product; where torch
has no oneDNN the plain product is used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from engine.backends.row_tiling import REFERENCE_COUNT, RowTiling

Op = Callable[..., torch.Tensor]


def supports_packing(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float32:
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear(nn.Module):
    """oneDNN, the weight `[out_features, in_features]` packed once; bias `[out_features]`."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, tiling: RowTiling
    ) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, REFERENCE_COUNT)
        self._bias = bias
        self._tiling = tiling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, "none")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, "swish")

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._binary(x, factor, "mul")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._binary(x, residual, "add")

    def _unary(self, x: torch.Tensor, attribute: str) -> torch.Tensor:
        def op(tile: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                tile, self._weight, self._bias, attribute, [], ""
            )
            return result

        return _in_tiles(op, self._tiling, x)

    def _binary(self, x: torch.Tensor, other: torch.Tensor, attribute: str) -> torch.Tensor:
        def op(tile: torch.Tensor, other_tile: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                tile, other_tile, self._weight, self._bias, attribute
            )
            return result

        return _in_tiles(op, self._tiling, x, other)


class PlainLinear(nn.Module):
    """The same layer without packing or fusion."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, tiling: RowTiling
    ) -> None:
        super().__init__()
        self._weight = weight
        self._bias = bias
        self._tiling = tiling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def op(tile: torch.Tensor) -> torch.Tensor:
            return F.linear(tile, self._weight, self._bias)

        return _in_tiles(op, self._tiling, x)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x))

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self(x) * factor
        return product

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self(x) + residual
        return total


def _in_tiles(op: Op, tiling: RowTiling, *inputs: torch.Tensor) -> torch.Tensor:
    """Apply `op` to tiles of rows; the number of rows is already a padded one."""
    tiles = tiling.tiles(inputs[0].shape[0])
    if len(tiles) == 1:
        return op(*inputs)
    parts = zip(*(tensor.split(tiles) for tensor in inputs), strict=True)
    return torch.cat([op(*part) for part in parts])
