"""Linear layers for the CPU, alone or fused with the operation behind the product.

Weights are packed once for oneDNN; where torch has no oneDNN the plain product is used. With which
numbers of rows they keep every row's bits is not known here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from engine.backends.row_tiling import REFERENCE_COUNT


def supports_packing(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float32:
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear(nn.Module):
    """oneDNN, the weight `[out_features, in_features]` packed once; bias `[out_features]`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, REFERENCE_COUNT)
        self._bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, "none")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, "swish")

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._binary(x, factor, "mul")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._binary(x, residual, "add")

    def _unary(self, x: torch.Tensor, attribute: str) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, attribute, [], ""
        )
        return result

    def _binary(self, x: torch.Tensor, other: torch.Tensor, attribute: str) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, other, self._weight, self._bias, attribute
        )
        return result


class PlainLinear(nn.Module):
    """The same layer without packing or fusion."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight = weight
        self._bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x))

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self(x) * factor
        return product

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self(x) + residual
        return total
