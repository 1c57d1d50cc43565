"""Linear layers with 8-bit weights: one scale for each output channel, and for each row of inputs.

Products and sums are integers, so that a row's result is the same bits in any batch, and the same
from our own kernel (`native/linear_int8.cpp`) as from PyTorch.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import nn

_LANES = 16
_NONE, _MUL, _ADD = range(3)
_LARGEST = 127.0


class _Layer(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int32),
        ("out_features", ctypes.c_int32),
    ]


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[num_rows, size]` to int8 and float32 scales `[num_rows, 1]`."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    # Tensors, since a number divided by a tensor is multiplied with its rounded reciprocal.
    most = torch.full_like(largest, _LARGEST)
    factor = torch.where(largest > 0, most / largest, 0.0)
    return torch.round(x * factor).to(torch.int8), largest / most


class Int8Linear(nn.Module):
    """PyTorch's integer product; `weight` is `[out_features, in_features]`, quantised here."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        quantized, scales = quantize_rows(weight)
        self._weight = quantized.t()
        self._scales = scales.flatten()
        self._bias = None if bias is None else bias.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x).to(x.dtype)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x))

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return (self._product(x) * factor.float()).to(x.dtype)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return (self._product(x) + residual.float()).to(x.dtype)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        quantized, scales = quantize_rows(x)
        product = torch._int_mm(quantized, self._weight).float() * scales * self._scales
        return product if self._bias is None else product + self._bias


class NativeInt8Linear(nn.Module):
    """The same by our own kernel, which does all of it in one pass over the weights."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, library: ctypes.CDLL
    ) -> None:
        super().__init__()
        self._library = library
        self._out_features, in_features = weight.shape
        quantized, scales = quantize_rows(weight)
        missing = -self._out_features % _LANES
        quantized = F.pad(quantized, (0, -in_features % 4, 0, missing))
        self._packed = quantized.unflatten(0, (-1, _LANES)).unflatten(2, (-1, 4))
        self._packed = self._packed.transpose(1, 2).contiguous()
        self._scales = F.pad(scales.flatten(), (0, missing))
        self._offsets = 128 * quantized.sum(1, dtype=torch.int32)
        self._bias = None if bias is None else bias.float()
        self._layer = _Layer(
            self._packed.data_ptr(),
            self._scales.data_ptr(),
            self._offsets.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            in_features,
            self._out_features,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x, _NONE, None)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x))

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._call(x, _MUL, factor)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._call(x, _ADD, residual)

    def _call(self, x: torch.Tensor, epilogue: int, other: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous()
        other = None if other is None else other.contiguous()
        output = x.new_empty(x.shape[0], self._out_features)
        self._library.tandem_linear_int8(
            ctypes.addressof(self._layer),
            int(x.dtype == torch.bfloat16),
            x.data_ptr(),
            x.shape[0],
            epilogue,
            None if other is None else other.data_ptr(),
            output.data_ptr(),
        )
        return output
