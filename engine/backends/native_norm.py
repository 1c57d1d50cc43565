"""Root mean square norms by our own kernel (`native/norm.cpp`): one call where PyTorch has ten."""

from __future__ import annotations

import ctypes

import torch


class NativeNorm:
    """Called as `rms_norm(x, weight, epsilon)`, over the last dimension."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        x = x.contiguous()
        size = weight.shape[0]
        output = torch.empty_like(x)
        self._library.tandem_rms_norm(
            int(x.dtype == torch.bfloat16),
            x.data_ptr(),
            weight.data_ptr(),
            x.numel() // size,
            size,
            epsilon,
            output.data_ptr(),
        )
        return output
