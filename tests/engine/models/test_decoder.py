"""The decoder on the CPU backend against the transformers library, on tiny random models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.backends.base import ForwardRow
from engine.backends.cpu import CpuBackend

TEXT = torch.randint(96, (40,), generator=torch.Generator().manual_seed(1)).tolist()
MODELS = [
    "llama",
    "llama-tied",
    "llama-one-kv-head",
    "llama-no-gqa",
    "llama-llama3-rope",
    "llama-linear-rope",
    "llama-biases",
    "llama-sharded",
    "mistral-sliding-window",
    "qwen2-biases",
    "qwen3-qk-norm-wide-heads",
]


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> Path:
    return tiny_model_dir(request.param)


@pytest.fixture(scope="module")
def backend(folder: Path) -> CpuBackend:
    backend = CpuBackend(folder, dtype="float32", num_slots=2, max_model_len=128)
    backend.warmup()
    return backend


@pytest.fixture(scope="module")
def oracle(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def logits_in_chunks(
    backend: CpuBackend, token_ids: Sequence[int], sizes: Sequence[int]
) -> torch.Tensor:
    parts, start = [], 0
    for size in sizes:
        row = ForwardRow(0, start, tuple(token_ids[start : start + size]), size)
        parts.append(backend.forward((row,)))
        start += size
    return torch.cat(parts)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([40], id="in-one-go"),
        pytest.param([1] * 40, id="token-by-token"),
        pytest.param([17, 1, 5, 16, 1], id="in-chunks"),
    ],
)
def test_logits_are_those_of_transformers(
    backend: CpuBackend, oracle: PreTrainedModel, sizes: list[int]
) -> None:
    with torch.inference_mode():
        expected = oracle(torch.tensor([TEXT])).logits[0]
    logits = logits_in_chunks(backend, TEXT, sizes)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_greedy_text_is_that_of_transformers(backend: CpuBackend, oracle: PreTrainedModel) -> None:
    prompt = TEXT[:7]
    expected = oracle.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[0]
    token_ids = list(prompt)
    logits = logits_in_chunks(backend, token_ids, [len(token_ids)])
    for _ in range(32):
        token_ids.append(int(logits[-1].argmax()))
        row = ForwardRow(0, len(token_ids) - 1, (token_ids[-1],), 1)
        logits = backend.forward((row,))
    assert token_ids == expected.tolist()
