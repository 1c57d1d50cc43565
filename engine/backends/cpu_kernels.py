"""Chooses linear layers, norms and attention of the CPU backend: our own kernels where they were
built and this processor and model fit, else PyTorch's."""

from __future__ import annotations

import ctypes
from functools import partial

import torch

from engine.backends.bfloat16_linear import NativeBfloat16Linear
from engine.backends.int8_linear import Int8Linear, NativeInt8Linear
from engine.backends.native_attention import NativeSlotAttention, supports_native
from engine.backends.native_library import load_native_library
from engine.backends.native_norm import NativeNorm
from engine.backends.packed_linear import PackedLinear, PlainLinear, supports_packing
from engine.backends.slot_attention import SlotAttention
from engine.config import KernelKind, Quantization
from engine.models.config import ModelConfig
from engine.models.decoder import LinearFactory, Norm, rms_norm


class CpuKernels:
    """`kind` "torch" leaves our own kernels out."""

    def __init__(self, kind: KernelKind, dtype: torch.dtype) -> None:
        self._library: ctypes.CDLL | None = load_native_library() if kind == "auto" else None
        self._dtype = dtype

    def linear(self, quantization: Quantization | None) -> LinearFactory:
        if quantization is None:
            return self._exact_linear()
        if self._library is None or not self._library.tandem_int8_supported():
            return Int8Linear
        return partial(NativeInt8Linear, library=self._library)

    def _exact_linear(self) -> LinearFactory:
        is_bfloat16 = self._dtype == torch.bfloat16
        if self._library is not None and is_bfloat16 and self._library.tandem_bfloat16_supported():
            return partial(NativeBfloat16Linear, library=self._library)
        return PackedLinear if supports_packing(self._dtype) else PlainLinear

    def norm(self) -> Norm:
        if self._library is None or not self._library.tandem_avx512_supported():
            return rms_norm
        return NativeNorm(self._library)

    def attention(
        self, config: ModelConfig, *, num_slots: int, max_positions: int
    ) -> SlotAttention | NativeSlotAttention:
        if self._library is None or not supports_native(self._library, config):
            return SlotAttention(
                config, num_slots=num_slots, max_positions=max_positions, dtype=self._dtype
            )
        return NativeSlotAttention(
            config,
            self._library,
            num_slots=num_slots,
            max_positions=max_positions,
            dtype=self._dtype,
        )
