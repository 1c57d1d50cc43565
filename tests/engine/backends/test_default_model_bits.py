"""The default model's logits, bit by bit: however a text is cut and whatever else is computed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.backends.base import ForwardRow
from engine.backends.cpu import CpuBackend

NUM_TOKENS = 560  # crosses the first whole block of the attention
TEXT = random.Random(0).choices(range(1000, 40000), k=NUM_TOKENS)


@pytest.fixture(scope="module", params=["bfloat16", "bfloat16-torch", "float32"])
def backend(request: pytest.FixtureRequest, model_dir: Path) -> CpuBackend:
    dtype, _, kernels = request.param.partition("-")
    backend = CpuBackend(
        model_dir, dtype=dtype, kernels=kernels or "auto", num_slots=6, max_model_len=640
    )
    backend.warmup()
    return backend


@pytest.fixture(scope="module")
def reference(backend: CpuBackend) -> torch.Tensor:  # [NUM_TOKENS, vocab_size]
    return run(backend, 0, [16] * (NUM_TOKENS // 16))


def part(slot_id: int, start: int, end: int) -> ForwardRow:
    return ForwardRow(slot_id, start, tuple(TEXT[start:end]), num_logits=end - start)


def run(backend: CpuBackend, slot_id: int, widths: list[int]) -> torch.Tensor:
    """The logits of the text, computed in parts of these widths."""
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    starts = [0, *ends[:-1]]
    parts = [part(slot_id, start, end) for start, end in zip(starts, ends, strict=True)]
    return torch.cat([backend.forward((each,)) for each in parts])


def random_widths(seed: int) -> list[int]:
    rng = random.Random(seed)
    widths: list[int] = []
    while (missing := NUM_TOKENS - sum(widths)) > 0:
        widths.append(min(missing, rng.choice([1, 2, 3, 5, 8, 13, 17, 31, 64, 100, 128])))
    return widths


@pytest.mark.parametrize("seed", range(3))
def test_logits_keep_their_bits_however_the_text_is_cut(backend, reference, seed):
    assert torch.equal(run(backend, 1 + seed, random_widths(seed)), reference)


@pytest.mark.parametrize(
    "slots",
    [(0, 1), (1, 2, 3, 4, 5), (0, 2, 4), (5,)],
    ids=["two", "five-neighbours", "gaps", "one"],
)
@pytest.mark.parametrize("width", [1, 2, 5, 8, 16])
def test_logits_keep_their_bits_in_company(backend, reference, slots, width):
    starts = [(3, 40, 130, 250, 380, 500)[slot] for slot in slots]
    for slot in slots:
        backend.copy_prefix(0, slot, NUM_TOKENS)
    rows = [part(s, p, p + max(1, width - s % 2)) for s, p in zip(slots, starts, strict=True)]
    expected = [reference[row.start_position : row.end_position] for row in rows]
    assert torch.equal(backend.forward(tuple(rows)), torch.cat(expected))
