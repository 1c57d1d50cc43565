"""The CPU linear layers: right values, and the same bits for any number and place of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.backends.packed_linear import PackedLinear, PlainLinear, supports_packing
from engine.backends.row_tiling import REFERENCE_COUNT, RowTiling

NUM_ROWS = 64
OPS = ["forward", "silu", "mul", "add"]
SHAPES = [
    pytest.param(64, 64, id="64x64"),
    pytest.param(576, 1536, id="576x1536"),
    pytest.param(1536, 576, id="1536x576"),
]
DTYPES = [
    pytest.param(torch.float32, id="float32"),
    pytest.param(torch.bfloat16, id="bfloat16"),
]
CANDIDATE_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 32, 64)
MAX_COUNT = 40


class Case:
    """A layer with its inputs, and the tiling that it is called with."""

    def __init__(
        self, layer_class: type, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        if layer_class is PackedLinear and not supports_packing(dtype):
            pytest.skip(f"torch cannot pack {dtype} on this machine")
        generator = torch.Generator().manual_seed(0)
        self.weight = self._random(generator, out_features, in_features, dtype) / in_features**0.5
        self.bias = self._random(generator, 1, out_features, dtype)[0]
        self.x = self._random(generator, NUM_ROWS, in_features, dtype)
        self.other = self._random(generator, NUM_ROWS, out_features, dtype)
        self.tiling = RowTiling()
        self.layer = layer_class(self.weight, self.bias)

    @staticmethod
    def _random(
        generator: torch.Generator, num_rows: int, size: int, dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.randn(num_rows, size, generator=generator).to(dtype)

    @torch.inference_mode()
    def rows(self, op: str, start: int, count: int) -> torch.Tensor:
        """`count` rows of the result, called as the backend does: padded to what the tiling has."""
        padding = (0, 0, 0, self.tiling.padded(count) - count)
        inputs = [self.x, self.other] if op in ("mul", "add") else [self.x]
        padded = [F.pad(tensor[start : start + count], padding) for tensor in inputs]
        tiles = self.tiling.tiles(count)
        parts = zip(*(tensor.split(tiles) for tensor in padded), strict=True)
        return torch.cat([getattr(self.layer, op)(*part) for part in parts])[:count]

    def reference(self, op: str) -> torch.Tensor:
        self.tiling.use(())
        return self.rows(op, 0, NUM_ROWS)

    def probe(self, op: str) -> None:
        """Let the tiling use every count that gives the bits of the reference in each place."""
        reference, exact_counts = self.reference(op), []
        for count in CANDIDATE_COUNTS:
            self.tiling.use([count])
            starts = range(0, NUM_ROWS - count + 1, count)
            if all(
                torch.equal(self.rows(op, start, count), reference[start : start + count])
                for start in starts
            ):
                exact_counts.append(count)
        self.tiling.use(exact_counts)


pytestmark = [
    pytest.mark.parametrize("dtype", DTYPES),
    pytest.mark.parametrize("layer_class", [PackedLinear, PlainLinear]),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_values_are_those_of_plain_torch(
    layer_class: type, in_features: int, out_features: int, dtype: torch.dtype, op: str
) -> None:
    case = Case(layer_class, in_features, out_features, dtype)
    product = F.linear(case.x.double(), case.weight.double(), case.bias.double())
    expected = {
        "forward": product,
        "silu": F.silu(product),
        "mul": product * case.other.double(),
        "add": product + case.other.double(),
    }[op]
    # bfloat16 keeps 8 bits; without fusion it rounds twice.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        case.reference(op).double(), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_rows_keep_their_bits_in_tiles_of_the_reference_count(
    layer_class: type, in_features: int, out_features: int, dtype: torch.dtype, op: str
) -> None:
    case = Case(layer_class, in_features, out_features, dtype)
    reference = case.reference(op)
    for count in range(1, MAX_COUNT + 1):
        start = count * 5 % (NUM_ROWS - MAX_COUNT)
        assert torch.equal(case.rows(op, start, count), reference[start : start + count])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_rows_keep_their_bits_for_every_count_and_offset_after_probing(
    layer_class: type, in_features: int, out_features: int, dtype: torch.dtype, op: str
) -> None:
    case = Case(layer_class, in_features, out_features, dtype)
    reference = case.reference(op)
    case.probe(op)
    for count in range(1, MAX_COUNT + 1):
        for start in range(0, NUM_ROWS - MAX_COUNT + 1, 6):
            assert torch.equal(case.rows(op, start, count), reference[start : start + count])


def test_other_rows_do_not_change_a_row(layer_class: type, dtype: torch.dtype) -> None:
    case = Case(layer_class, 64, 64, dtype)
    row = case.rows("forward", 3, REFERENCE_COUNT)[0]
    case.x[4:] = 1e4
    assert torch.equal(case.rows("forward", 3, REFERENCE_COUNT)[0], row)
