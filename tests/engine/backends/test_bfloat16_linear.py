"""Our bfloat16 product: near the exact one, and the same bits for any number and place of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.backends.bfloat16_linear import NativeBfloat16Linear
from engine.backends.native_library import load_native_library

NUM_ROWS = 40
SHAPES = [
    pytest.param(64, 64, id="64x64"),
    pytest.param(576, 1536, id="576x1536"),
    pytest.param(1536, 576, id="1536x576"),
    pytest.param(30, 50, id="odd-30x50"),
    pytest.param(7, 3, id="odd-7x3"),
]
OPS = ("forward", "silu", "mul", "add")
# Half a unit in the last of 8 bits, for the result, and for the sum behind silu.
ROUNDING = 2**-8


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def native(weight: torch.Tensor, bias: torch.Tensor | None) -> NativeBfloat16Linear:
    library = load_native_library()
    if library is None or not library.tandem_bfloat16_supported():
        pytest.skip("not built here, or this processor has no AVX-512 BF16, or has AMX")
    return NativeBfloat16Linear(weight, bias, library)


def run(layer: torch.nn.Module, op: str, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    inputs = (x, other) if op in ("mul", "add") else (x,)
    return getattr(layer, op)(*inputs)


def exact(op: str, product: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    match op:
        case "mul":
            return product * other.double()
        case "add":
            return product + other.double()
        case "silu":
            return F.silu(product)
    return product


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_a_result_is_the_exact_one_rounded(op, has_bias, in_features, out_features):
    weight, bias = random(out_features, in_features), random(out_features)
    x, other = random(NUM_ROWS, in_features), random(NUM_ROWS, out_features)
    product = x.double() @ weight.double().t() + (bias.double() if has_bias else 0)
    expected = exact(op, product, other)
    layer = native(weight, bias if has_bias else None)
    # The sums are in float32: their error grows with the terms, not with what is left of them.
    terms = x.double().abs() @ weight.double().abs().t()
    slack = 2**-20 * terms * (1 + other.double().abs())
    for count in (1, 2, 3, 4, 5, 8, 9, 16, 17, NUM_ROWS):
        result = run(layer, op, x[:count], other[:count]).double()
        bound = (ROUNDING * (expected.abs() + product.abs()) + slack)[:count]
        assert ((result - expected[:count]).abs() <= bound).all(), count


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_a_row_has_its_bits_for_any_number_and_place_of_rows(op, in_features, out_features):
    layer = native(random(out_features, in_features), random(out_features))
    x, other = random(NUM_ROWS, in_features), random(NUM_ROWS, out_features)
    whole = run(layer, op, x, other)
    for count in range(1, 20):
        for start in (0, 1, NUM_ROWS - count):
            rows = slice(start, start + count)
            assert torch.equal(run(layer, op, x[rows], other[rows]), whole[rows]), (start, count)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_share_out_all_channels_and_change_no_bit(num_threads):
    layer = native(random(1000, 64), None)
    x = random(NUM_ROWS, 64)
    expected = layer(x)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(layer(x), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_it_gives_its_weights_back(in_features, out_features):
    weight = random(out_features, in_features)
    indices = torch.tensor([out_features - 1, 0, 1, 1])
    assert torch.equal(native(weight, None).rows(indices), weight[indices])
