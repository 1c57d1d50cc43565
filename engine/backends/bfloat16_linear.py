"""Linear layers in bfloat16 by our own kernel (`native/linear_bfloat16.cpp`).

It adds in float32, always in the same order: a row's result is the same bits in any batch, but not
those of PyTorch, which adds in others.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import nn

_LANES = 16
_PAIR = 2
_NONE, _MUL, _ADD = range(3)


class _Layer(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int32),
        ("out_features", ctypes.c_int32),
    ]


class NativeBfloat16Linear(nn.Module):
    """The weight `[out_features, in_features]` is packed once; bias `[out_features]`."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, library: ctypes.CDLL
    ) -> None:
        super().__init__()
        self._library = library
        self._out_features, self._in_features = weight.shape
        self._missing = -self._in_features % _PAIR
        packed = F.pad(weight, (0, self._missing, 0, -self._out_features % _LANES))
        packed = packed.unflatten(0, (-1, _LANES)).unflatten(2, (-1, _PAIR))
        self._packed = packed.transpose(1, 2).contiguous()
        self._bias = bias
        self._layer = _Layer(
            self._packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            self._in_features + self._missing,
            self._out_features,
        )

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """`[num_indices]` to the weights `[num_indices, in_features]`, as they were given."""
        packed: torch.Tensor = self._packed[indices // _LANES, :, indices % _LANES]
        return packed.flatten(1)[:, : self._in_features]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x, _NONE, None)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x))

    def mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._call(x, _MUL, factor)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._call(x, _ADD, residual)

    def _call(self, x: torch.Tensor, epilogue: int, other: torch.Tensor | None) -> torch.Tensor:
        x = F.pad(x, (0, 1)) if self._missing else x.contiguous()
        other = None if other is None else other.contiguous()
        output = x.new_empty(x.shape[0], self._out_features)
        self._library.tandem_linear_bfloat16(
            ctypes.addressof(self._layer),
            x.data_ptr(),
            x.shape[0],
            epilogue,
            None if other is None else other.data_ptr(),
            output.data_ptr(),
        )
        return output
