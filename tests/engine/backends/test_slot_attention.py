"""Attention over KV slots, PyTorch's and our own kernel's: right values, and the same bits however
a text is cut and batched."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
import torch

from engine.backends.base import ForwardRow
from engine.backends.native_attention import NativeSlotAttention, supports_native
from engine.backends.native_library import load_native_library
from engine.backends.slot_attention import SlotAttention
from engine.models.config import ModelConfig, RopeConfig

NUM_SLOTS = 5
MAX_POSITIONS = 700
BORDERS = (63, 64, 65, 511, 512, 513)
WIDTHS = range(1, 41)


def model_config(num_heads: int, num_kv_heads: int, window: int | None = None) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=64,
        intermediate_size=64,
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=32,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=window,
        eos_token_ids=(),
    )


CONFIGS = {
    "grouped": model_config(6, 2),
    "no-groups": model_config(3, 3),
    "window-9": model_config(6, 2, window=9),
    "window-600": model_config(4, 1, window=600),
    "heads-of-80": dataclasses.replace(model_config(7, 1), head_dim=80),
}


class Text:
    """Random queries, keys and values of one text."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        kv_shape = (MAX_POSITIONS, config.num_kv_heads, config.head_dim)
        group_size = config.num_heads // config.num_kv_heads
        query_shape = (MAX_POSITIONS, group_size, *kv_shape[1:])
        self.query = 2 * torch.randn(query_shape, generator=generator).to(dtype)
        self.key = torch.randn(kv_shape, generator=generator).to(dtype)
        self.value = torch.randn(kv_shape, generator=generator).to(dtype)


def make_attention(
    config: ModelConfig, dtype: torch.dtype, kernel: str
) -> SlotAttention | NativeSlotAttention:
    sizes = {"num_slots": NUM_SLOTS, "max_positions": MAX_POSITIONS, "dtype": dtype}
    if kernel == "torch":
        return SlotAttention(config, **sizes)
    library = load_native_library()
    if library is None or not supports_native(library, config):
        pytest.skip("the kernel was not built here, or this processor has no AVX-512")
    return NativeSlotAttention(config, library, **sizes)


Part = tuple[int, Text, int, int]  # slot, text, start position, number of tokens


class Case:
    """An attention and one text, with what each of its positions attends to alone."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, kernel: str) -> None:
        self.config = config
        self.text = Text(config, dtype)
        self.attention = make_attention(config, dtype, kernel)
        self._filled: set[int] = set()
        self.reference = self.run((0, self.text, 0, MAX_POSITIONS))

    def run(self, *parts: Part, num_padding: int = 0) -> torch.Tensor:
        """Attend in one plan; the result has the tokens of all parts, one after the other."""
        rows = [ForwardRow(slot, start, (0,) * count, count) for slot, _, start, count in parts]
        self._filled -= {slot for slot, text, *_ in parts if text is not self.text}
        num_tokens = sum(count for *_, count in parts)
        inputs = []
        for name in ("query", "key", "value"):
            pieces = [getattr(text, name)[start : start + n] for _, text, start, n in parts]
            pieces.append(pieces[0][:1].expand(num_padding, *pieces[0].shape[1:]))
            inputs.append(torch.cat(pieces))
        self.attention.plan(rows, num_tokens + num_padding)
        return self.attention(0, *inputs)[:num_tokens]

    def fill(self, *slots: int) -> None:
        """Bring the whole text into the slots that do not hold it."""
        for slot in set(slots) - self._filled:
            self.run((slot, self.text, 0, MAX_POSITIONS))
            self._filled.add(slot)

    def fill_with_garbage(self, *slots: int) -> None:
        garbage = Text(self.config, self.text.key.dtype, seed=1)
        garbage.key *= 1e4
        garbage.value *= 1e30
        for slot in slots:
            self.run((slot, garbage, 0, MAX_POSITIONS))

    def expected(self, *spans: Sequence[int]) -> torch.Tensor:
        return torch.cat([self.reference[start : start + count] for start, count in spans])


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module", params=["torch", "native"])
def kernel(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, dtype: torch.dtype, kernel: str) -> Case:
    return Case(CONFIGS[request.param], dtype, kernel)


def naive(config: ModelConfig, text: Text, position: int) -> torch.Tensor:
    """Softmax attention of one position in float64: `[group_size * num_kv_heads * head_dim]`."""
    first = 0 if config.sliding_window is None else max(0, position - config.sliding_window + 1)
    keys, values = (
        text.key[first : position + 1].double(),
        text.value[first : position + 1].double(),
    )
    query = text.query[position].double()  # [group_size, num_kv_heads, head_dim]
    scores = torch.einsum("ghd,khd->ghk", query, keys) / config.head_dim**0.5
    return torch.einsum("ghk,khd->ghd", scores.softmax(-1), values).flatten()


def test_values_are_those_of_softmax_attention(case: Case, dtype: torch.dtype) -> None:
    positions = [0, 1, 8, 9, 10, 15, 16, 63, 64, 65, 511, 512, 599, 600, 601, 699]
    expected = torch.stack([naive(case.config, case.text, p) for p in positions])
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2  # bfloat16 keeps 8 bits
    torch.testing.assert_close(
        case.reference[positions].double(), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("length", BORDERS)
def test_any_width_that_ends_at_a_border_keeps_the_bits(case: Case, length: int) -> None:
    case.fill(0)
    for width in WIDTHS:
        start = length - width
        part = case.run((0, case.text, start, width))
        assert torch.equal(part, case.expected((start, width))), width


@pytest.mark.parametrize("start", [0, 40, 505, 640])
def test_any_width_that_begins_anywhere_keeps_the_bits(case: Case, start: int) -> None:
    case.fill(0)
    for width in WIDTHS:
        part = case.run((0, case.text, start, width))
        assert torch.equal(part, case.expected((start, width))), width


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param([0, 1], id="neighbours"),
        pytest.param([0, 1, 2, 3, 4], id="all"),
        pytest.param([1, 3, 4], id="gap"),
        pytest.param([4, 2, 0], id="backwards"),
        pytest.param([1, 0, 2], id="mixed"),
    ],
)
def test_batches_of_slots_in_any_order_keep_the_bits(case: Case, slots: list[int]) -> None:
    case.fill(*range(NUM_SLOTS))
    # Lengths on both sides of the borders, so that rows of a call have different ones.
    all_starts = ([510, 511, 512, 513, 62], [60, 61, 62, 63, 64], [0, 650, 1, 512, 448])
    for starts, width in itertools.product(all_starts, (1, 3, 8, 17)):
        spans = [(start, width) for start in starts[: len(slots)]]
        parts = [(slot, case.text, *span) for slot, span in zip(slots, spans, strict=True)]
        assert torch.equal(case.run(*parts), case.expected(*spans))


def test_rows_of_different_widths_keep_the_bits(case: Case) -> None:
    case.fill(*range(NUM_SLOTS))
    spans = [(100, 1), (510, 5), (63, 5), (0, 40), (300, 1)]
    parts = [(slot, case.text, *span) for slot, span in enumerate(spans)]
    assert torch.equal(case.run(*parts), case.expected(*spans))


def test_padding_tokens_leave_no_trace(case: Case) -> None:
    case.fill(*range(NUM_SLOTS))
    spans = [(100, 3), (200, 3)]
    parts = [(slot, case.text, *span) for slot, span in zip((0, 1), spans, strict=True)]
    assert torch.equal(case.run(*parts, num_padding=10), case.expected(*spans))
    for slot in range(NUM_SLOTS):
        assert torch.equal(case.run((slot, case.text, 690, 10)), case.expected((690, 10)))


@pytest.mark.parametrize("width", [1, 3, 16, 40])
def test_what_a_slot_held_before_is_not_seen(case: Case, width: int) -> None:
    case.fill_with_garbage(0, 1, 3)
    for start in range(0, 100, width):
        parts = [(slot, case.text, start, width) for slot in (0, 1, 3)]
        assert torch.equal(case.run(*parts), case.expected(*[(start, width)] * 3)), start


def test_a_rejected_draft_is_overwritten(case: Case) -> None:
    case.fill(0)
    case.run((0, Text(case.config, case.text.key.dtype, seed=1), 60, 8))
    assert torch.equal(case.run((0, case.text, 60, 8)), case.expected((60, 8)))


@pytest.mark.parametrize("num_tokens", [1, 64, 513])
def test_a_copied_prefix_attends_like_a_computed_one(case: Case, num_tokens: int) -> None:
    case.fill(0)
    case.fill_with_garbage(3)
    case.attention.copy_prefix(0, 3, num_tokens)
    part = case.run((3, case.text, num_tokens, 5))
    assert torch.equal(part, case.expected((num_tokens, 5)))


def test_a_window_as_long_as_the_text_is_no_window(dtype: torch.dtype, kernel: str) -> None:
    config = CONFIGS["grouped"]
    windowed = dataclasses.replace(config, sliding_window=MAX_POSITIONS)
    cases = [Case(each, dtype, kernel) for each in (config, windowed)]
    assert torch.equal(cases[0].reference, cases[1].reference)
