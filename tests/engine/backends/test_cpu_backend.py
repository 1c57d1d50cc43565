"""The CPU backend's promise: a row's logits do not depend, in any bit, on how they are computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.backends.base import ForwardRow
from engine.backends.cpu import CpuBackend
from engine.models.config import ModelError

NUM_SLOTS = 4
VOCAB_SIZE = 96
MAX_MODEL_LEN = 100
TEXT = torch.randint(96, (MAX_MODEL_LEN,), generator=torch.Generator().manual_seed(1)).tolist()
OTHER_TEXT = torch.randint(
    96, (MAX_MODEL_LEN,), generator=torch.Generator().manual_seed(2)
).tolist()
MODELS = [
    "llama-one-kv-head",
    "llama-wide-mlp",
    "mistral-sliding-window",
    "qwen3-qk-norm-wide-heads",
]


def row(slot: int, start: int, count: int, *, num_logits: int | None = None) -> ForwardRow:
    token_ids = tuple(TEXT[start : start + count])
    return ForwardRow(slot, start, token_ids, count if num_logits is None else num_logits)


# Ways to compute; where our own kernels are not built, the last two are the first two again.
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "float32-torch": {"dtype": "float32", "kernels": "torch"},
    "bfloat16-torch": {"dtype": "bfloat16", "kernels": "torch"},
}


def load(folder: Path, options: str) -> CpuBackend:
    backend = CpuBackend(
        folder, num_slots=NUM_SLOTS, max_model_len=MAX_MODEL_LEN, **OPTIONS[options]
    )
    backend.warmup()
    return backend


class Case:
    """A backend whose slots all hold the text, and the logits of the text computed in one go."""

    def __init__(self, backend: CpuBackend) -> None:
        self.backend = backend
        for slot in range(NUM_SLOTS):
            self.reference = backend.forward((row(slot, 0, MAX_MODEL_LEN),))

    def fill_with_other_text(self, slot: int) -> None:
        self.backend.forward((ForwardRow(slot, 0, tuple(OTHER_TEXT), 0),))

    def expected(self, *spans: tuple[int, int]) -> torch.Tensor:
        return torch.cat([self.reference[start : start + count] for start, count in spans])


@pytest.fixture(scope="module", params=OPTIONS)
def options(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=MODELS)
def case(
    request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path], options: str
) -> Case:
    return Case(load(tiny_model_dir(request.param), options))


def test_every_width_at_any_offset_keeps_the_bits(case: Case) -> None:
    for width in range(1, 41):
        for start in {0, 7, MAX_MODEL_LEN - width, max(0, 64 - width), max(0, 65 - width)}:
            logits = case.backend.forward((row(0, start, width),))
            assert torch.equal(logits, case.expected((start, width))), (start, width)


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param([0, 1], id="neighbours"),
        pytest.param([0, 1, 2, 3], id="all"),
        pytest.param([3, 1], id="gap-and-backwards"),
        pytest.param([2, 0, 3, 1], id="mixed"),
    ],
)
def test_batches_keep_the_bits(case: Case, slots: list[int]) -> None:
    for width in (1, 2, 3, 4, 6, 8, 12, 16, 17, 33):
        for starts in ([0, 10, 31, 62], [63, 63, 63, 63], [67, 1, 30, 48]):
            spans = [(start, width) for start in starts[: len(slots)]]
            rows = tuple(row(slot, *span) for slot, span in zip(slots, spans, strict=True))
            assert torch.equal(case.backend.forward(rows), case.expected(*spans)), (width, starts)


def test_rows_of_different_widths_keep_the_bits(case: Case) -> None:
    spans = [(20, 1), (63, 5), (0, 40), (50, 16)]
    rows = tuple(row(slot, *span) for slot, span in enumerate(spans))
    assert torch.equal(case.backend.forward(rows), case.expected(*spans))


def test_what_other_rows_hold_does_not_matter(case: Case) -> None:
    others = tuple(ForwardRow(slot, 0, tuple(OTHER_TEXT[:9]), 9) for slot in (1, 2))
    logits = case.backend.forward((row(0, 30, 9), *others))
    for slot in (1, 2):
        case.backend.forward((row(slot, 0, 9, num_logits=0),))
    assert torch.equal(logits[:9], case.expected((30, 9)))
    assert not torch.equal(logits[9:18], case.expected((0, 9)))


def test_only_the_wanted_logits_come_back(case: Case) -> None:
    rows = (row(0, 5, 7, num_logits=1), row(1, 5, 7, num_logits=0), row(3, 9, 20, num_logits=3))
    assert torch.equal(case.backend.forward(rows), case.expected((11, 1), (26, 3)))
    nothing = case.backend.forward((row(0, 0, 3, num_logits=0),))
    assert (nothing.shape, nothing.dtype) == ((0, VOCAB_SIZE), torch.float32)


def test_a_rejected_draft_is_overwritten(case: Case) -> None:
    draft = (TEXT[50], *OTHER_TEXT[:7])
    case.backend.forward((ForwardRow(0, 50, draft, 8),))
    logits = case.backend.forward((row(0, 51, MAX_MODEL_LEN - 51),))
    assert torch.equal(logits, case.expected((51, MAX_MODEL_LEN - 51)))


@pytest.mark.parametrize("num_tokens", [1, 16, 63, 64, 65])
def test_a_copied_prefix_gives_the_logits_of_a_computed_one(case: Case, num_tokens: int) -> None:
    case.fill_with_other_text(2)
    case.backend.copy_prefix(0, 2, num_tokens)
    num_left = MAX_MODEL_LEN - num_tokens
    logits = case.backend.forward((row(2, num_tokens, num_left),))
    assert torch.equal(logits, case.expected((num_tokens, num_left)))


def test_copying_leaves_the_source_and_other_slots_alone(case: Case) -> None:
    case.backend.copy_prefix(0, 1, 40)
    for slot in (0, 2, 3):
        logits = case.backend.forward((row(slot, 90, 10),))
        assert torch.equal(logits, case.expected((90, 10)))


def test_a_slot_used_by_another_text_before_leaves_no_trace(case: Case) -> None:
    case.fill_with_other_text(3)
    parts = [case.backend.forward((row(3, start, 4),)) for start in range(0, MAX_MODEL_LEN, 4)]
    assert torch.equal(torch.cat(parts), case.reference)


def test_a_backend_loaded_again_computes_the_same_bits(
    tiny_model_dir: Callable[[str], Path], options: str
) -> None:
    first, second = (Case(load(tiny_model_dir("llama"), options)) for _ in range(2))
    assert torch.equal(first.reference, second.reference)


def test_bits_are_kept_without_a_warmup(
    tiny_model_dir: Callable[[str], Path], options: str
) -> None:
    folder = tiny_model_dir("llama")
    cold = CpuBackend(folder, num_slots=NUM_SLOTS, max_model_len=MAX_MODEL_LEN, **OPTIONS[options])
    assert torch.equal(Case(cold).reference, Case(load(folder, options)).reference)


def test_info_describes_the_model(tiny_model_dir: Callable[[str], Path], options: str) -> None:
    folder = tiny_model_dir("llama")
    info = CpuBackend(folder, num_slots=3, **OPTIONS[options]).info
    assert (info.vocab_size, info.max_model_len, info.num_slots) == (VOCAB_SIZE, 256, 3)
    assert info.dtype == OPTIONS[options]["dtype"]


def test_a_context_above_the_models_own_is_refused(tiny_model_dir):
    with pytest.raises(ModelError, match=r"300.*256"):
        CpuBackend(tiny_model_dir("llama"), max_model_len=300)


def test_a_kv_cache_that_cannot_fit_is_refused_before_it_is_allocated(tiny_model_dir):
    with pytest.raises(ModelError, match="lower max_model_len or max_num_seqs"):
        CpuBackend(tiny_model_dir("llama"), num_slots=10**9)
