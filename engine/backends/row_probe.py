"""Finds the numbers of rows with which a decoder gives every row the same bits on this machine.

A result in bfloat16 hides another order of summation but for one in some thousand outputs. So the
linear layers are asked for their product minus the rounded product: what is left are the bits that
rounding took away, and there about one in ten differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from engine.backends.row_tiling import REFERENCE_COUNT
from engine.models.decoder import Decoder, DecoderLayer, Linear

_NUM_ROWS = 128
_NUM_LAYERS = 2
# Of one part, for one count; compared in whole calls.
_MIN_OUTPUTS = 2**16


class RowProbe:
    """Compares the parts of a decoder, and a pass of some layers, with `REFERENCE_COUNT` rows."""

    def __init__(self, decoder: Decoder) -> None:
        self._parts = list(_parts(decoder))

    def exact_counts(self, counts: Iterable[int]) -> list[int]:
        """Those of `counts`, each at most 128, that change no bit."""
        return [count for count in counts if all(part.is_exact(count) for part in self._parts)]


class _Part:
    """A function of tensors `[num_rows, ...]` with inputs for many rows."""

    def __init__(self, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
        self._function = function
        self._inputs = inputs
        self.reference = torch.cat(list(self._calls(REFERENCE_COUNT)))

    def is_exact(self, count: int) -> bool:
        num_calls = -(-_MIN_OUTPUTS // (count * self.reference[0].numel()))
        calls = zip(range(num_calls), self._calls(count), self.reference.split(count), strict=False)
        return all(torch.equal(actual, expected) for _, actual, expected in calls)

    def _calls(self, count: int) -> Iterator[torch.Tensor]:
        """The results of whole calls of `count` rows, which may leave some rows out."""
        for start in range(0, _NUM_ROWS - count + 1, count):
            yield self._function(*(each[start : start + count] for each in self._inputs))


def _parts(decoder: Decoder) -> Iterator[_Part]:
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(decoder.config.vocab_size, (_NUM_ROWS,), generator=generator)
    positions = torch.arange(_NUM_ROWS) % decoder.rotary.num_positions
    few_layers = _Part(
        lambda ids, places: decoder(ids, places, _attend_to_self, num_layers=_NUM_LAYERS),
        *(input_ids, positions),
    )
    yield few_layers
    yield _Part(decoder.logits, few_layers.reference)
    yield from _norms(decoder, generator)
    for linear, in_features in _linears(decoder):
        x = torch.randn(_NUM_ROWS, in_features, generator=generator).to(decoder.norm.dtype)
        yield _Part(linear.add, x, -_Part(linear, x).reference)


def _norms(decoder: Decoder, generator: torch.Generator) -> Iterator[_Part]:
    """One of each shape, in float32, where rounding hides nothing."""
    config = decoder.config
    shapes: list[tuple[int, ...]] = [(config.hidden_size,)]
    if config.qk_norm:
        shapes.append((config.num_heads, config.head_dim))
    for shape in shapes:
        x = torch.randn(_NUM_ROWS, *shape, generator=generator)
        weight = torch.randn(shape[-1], generator=generator)
        yield _Part(partial(_norm, decoder, weight), x)


def _norm(decoder: Decoder, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return decoder.normalize(x, weight, decoder.config.rms_norm_eps)


def _linears(decoder: Decoder) -> Iterator[tuple[Linear, int]]:
    """One of each shape, with its `in_features`."""
    config = decoder.config
    layer: DecoderLayer = decoder.layers[0]  # type: ignore[assignment]
    for linear in (layer.qkv, layer.gate, layer.up, decoder.head):
        yield linear, config.hidden_size
    yield layer.output, config.num_heads * config.head_dim
    yield layer.down, config.intermediate_size


def _attend_to_self(
    _layer_index: int, query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor
) -> torch.Tensor:
    return query.flatten(1)
