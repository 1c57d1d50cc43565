"""8-bit linear layers: near the exact product, and the same bits from both implementations, for any
number and place of rows."""

from __future__ import annotations

import pytest
import torch

from engine.backends.int8_linear import Int8Linear, NativeInt8Linear, quantize_rows
from engine.backends.native_library import load_native_library

NUM_ROWS = 40
OPS = ("forward", "silu", "mul", "add")
SHAPES = [
    pytest.param(64, 64, id="64x64"),
    pytest.param(576, 1536, id="576x1536"),
    pytest.param(1536, 576, id="1536x576"),
    pytest.param(30, 50, id="odd-30x50"),
    pytest.param(7, 3, id="odd-7x3"),
]


class Layer:
    """Weights with inputs, some of them odd: zeros, tiny and huge rows."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.weight = random(out_features, in_features)
        self.weight[0] = 0
        self.bias = random(out_features)
        self.x = random(NUM_ROWS, in_features)
        self.x[3], self.x[4], self.x[5] = 0, self.x[4] * 1e-30, self.x[5] * 1e30
        self.other = random(NUM_ROWS, out_features)

    def run(self, layer: torch.nn.Module, op: str, rows: slice) -> torch.Tensor:
        inputs = (self.x[rows], self.other[rows]) if op in ("mul", "add") else (self.x[rows],)
        return getattr(layer, op)(*inputs)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def native(weight: torch.Tensor, bias: torch.Tensor | None) -> NativeInt8Linear:
    library = load_native_library()
    if library is None or not library.tandem_int8_supported():
        pytest.skip("the kernel was not built here, or this processor has no VNNI")
    return NativeInt8Linear(weight, bias, library)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_our_kernel_gives_the_bits_of_pytorch(in_features, out_features, has_bias, dtype):
    layer = Layer(in_features, out_features, dtype)
    bias = layer.bias if has_bias else None
    ours, torchs = native(layer.weight, bias), Int8Linear(layer.weight, bias)
    for op in OPS:
        for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, NUM_ROWS):
            rows = slice(0, count)
            assert torch.equal(layer.run(ours, op, rows), layer.run(torchs, op, rows)), (op, count)


@pytest.mark.parametrize("make", [native, Int8Linear], ids=["native", "torch"])
@pytest.mark.parametrize("op", OPS)
def test_a_row_has_its_bits_for_any_number_and_place_of_rows(make, op, dtype):
    layer = Layer(576, 1536, dtype)
    module = make(layer.weight, layer.bias)
    whole = layer.run(module, op, slice(0, NUM_ROWS))
    for count in range(1, 20):
        for start in (0, 1, NUM_ROWS - count):
            rows = slice(start, start + count)
            assert torch.equal(layer.run(module, op, rows), whole[rows]), (start, count)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_a_result_is_as_near_as_rounding_to_8_bits_allows(in_features, out_features, dtype):
    """Each input and weight is off by half a step at most."""
    layer = Layer(in_features, out_features, dtype)
    x, weight = layer.x.double(), layer.weight.double()
    result = layer.run(Int8Linear(layer.weight, layer.bias), "forward", slice(0, NUM_ROWS))
    x_step = x.abs().amax(1, keepdim=True) / 254
    weight_step = weight.abs().amax(1, keepdim=True) / 254
    bound = x_step * weight.abs().sum(1) + x.abs().sum(1, keepdim=True) * weight_step.t()
    bound += in_features * x_step * weight_step.t()
    exact = x @ weight.t() + layer.bias.double()
    rounding = 2**-8 if dtype == torch.bfloat16 else 2**-20
    assert ((result.double() - exact).abs() <= bound * 1.001 + exact.abs() * rounding).all()


def test_the_largest_of_a_row_keeps_its_value_and_zeros_stay_zeros():
    quantized, scales = quantize_rows(torch.tensor([[1.0, -4.0, 0.0], [0.0, 0.0, 0.0]]))
    assert quantized.tolist() == [[32, -127, 0], [0, 0, 0]]
    assert scales.flatten().tolist() == [torch.tensor(4.0).div(torch.tensor(127.0)).item(), 0.0]
