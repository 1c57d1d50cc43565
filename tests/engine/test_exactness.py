"""The product: on the real model, nothing but the request itself changes one bit of its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.config import EngineConfig, SpeculativeConfig
from engine.core import EngineCore
from engine.messages import AddRequest
from engine.process import build_core
from tests.engine.driver import Generation, add_request, run, run_one

PROMPTS_FILE = Path(__file__).parents[2] / "app" / "bench" / "prompts.jsonl"
PROMPTS = [json.loads(line) for line in PROMPTS_FILE.read_text().splitlines()]
ORACLE_PROMPTS = sorted((p["prompt"] for p in PROMPTS), key=len)[:22]
NUM_TOKENS = 16
NUM_ORACLE_TOKENS = 64
# So many of them token by token, which takes long.
NUM_GENERATED = 4

SAMPLING = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 7},
    "seeded_filters": {"temperature": 0.8, "seed": 8, "top_p": 0.9, "top_k": 40},
    "min_p": {"temperature": 0.8, "seed": 9, "min_p": 0.05},
    "frequency_penalty": {"temperature": 0.0, "frequency_penalty": 1.2},
    "presence_penalty": {"temperature": 0.8, "seed": 10, "presence_penalty": 1.5},
    "repetition_penalty": {"temperature": 0.0, "repetition_penalty": 1.3},
    "logit_bias": {"temperature": 0.0, "logit_bias": {28: 4.0, 30: -100.0}},
    "min_tokens": {"temperature": 0.0, "min_tokens": 12, "stop_token_ids": [28, 198, 30]},
    "stop_token_ids": {"temperature": 0.8, "seed": 11, "stop_token_ids": [28, 30]},
}


def requests(
    tokenizer: Tokenizer, tag: str, num_speculative_tokens: int | None
) -> list[AddRequest]:
    return [
        add_request(
            f"{name}-{tag}",
            tokenizer.encode(PROMPTS[3 * i]["prompt"]).ids,
            num_speculative_tokens=num_speculative_tokens,
            max_tokens=NUM_TOKENS,
            num_logprobs=3,
            **params,
        )
        for i, (name, params) in enumerate(SAMPLING.items())
    ]


def results(generations: dict[str, Generation], tag: str) -> dict[str, tuple[object, ...]]:
    """Token ids, logprobs and finish reason by sampling parameters, whatever the run was called."""
    return {
        request_id.removesuffix(f"-{tag}"): (g.token_ids, g.logprobs, g.finish_reasons)
        for request_id, g in generations.items()
    }


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def draft_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own first layers as a draft model."""
    num_layers = 6
    folder = tmp_path_factory.mktemp("draft")
    config = json.loads((model_dir / "config.json").read_text())
    config["num_hidden_layers"] = num_layers
    (folder / "config.json").write_text(json.dumps(config))
    kept = {
        name: tensor
        for name, tensor in load_file(model_dir / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < num_layers
    }
    save_file(kept, folder / "model.safetensors")
    return folder


WAYS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "torch": {"dtype": "bfloat16", "kernels": "torch"},
}


@pytest.fixture(scope="module", params=WAYS)
def cores(
    request: pytest.FixtureRequest, model_dir: Path, draft_dir: Path
) -> dict[str, EngineCore]:
    """An engine for each way of drafting, and a plain one that reuses nothing."""
    return {
        method: build_core(
            EngineConfig(
                model_path=str(model_dir),
                **WAYS[request.param],
                max_model_len=1024,
                enable_prefix_caching=method != "none",
                speculative=SpeculativeConfig(method=method, draft_model_path=str(draft_dir)),
            )
        )[0]
        for method in ("none", "suffix", "draft_model")
    }


@pytest.fixture(scope="module")
def reference(cores: dict[str, EngineCore], tokenizer: Tokenizer) -> dict[str, tuple[object, ...]]:
    """Each request alone, without speculation, nothing cached."""
    generations = run_alone(cores["none"], requests(tokenizer, "alone", None))
    for generation in generations.values():
        assert generation.token_ids
        assert generation.num_draft_tokens == generation.num_cached_tokens == 0
    return results(generations, "alone")


def run_alone(core: EngineCore, messages: list[AddRequest]) -> dict[str, Generation]:
    return {message.request_id: run_one(core, message) for message in messages}


@pytest.mark.parametrize("num_speculative_tokens", [1, 4, 7])
def test_suffix_drafts_of_any_length_and_a_cached_prefix_change_no_bit(
    cores, tokenizer, reference, num_speculative_tokens
):
    tag = f"suffix{num_speculative_tokens}"
    first, again = (
        requests(tokenizer, f"{prefix}{tag}", num_speculative_tokens) for prefix in ("first-", "")
    )
    pairs = zip(first, again, strict=True)
    generations = run_alone(cores["suffix"], [message for pair in pairs for message in pair])
    firsts = {m.request_id: generations.pop(m.request_id) for m in first}
    assert results(firsts, f"first-{tag}") == results(generations, tag) == reference
    assert all(g.num_cached_tokens > 0 for g in generations.values())
    assert sum(g.num_accepted_tokens for g in generations.values()) > 0


def test_draft_model_changes_no_bit(cores, tokenizer, reference):
    generations = run_alone(cores["draft_model"], requests(tokenizer, "draft4", 4))
    assert results(generations, "draft4") == reference
    num_accepted = sum(g.num_accepted_tokens for g in generations.values())
    assert 0 < num_accepted < sum(g.num_draft_tokens for g in generations.values())


@pytest.mark.parametrize("method", ["suffix", "draft_model"])
@pytest.mark.parametrize("num_speculative_tokens", [0, 4, None], ids=["off", "4", "adaptive"])
def test_the_company_of_other_requests_changes_no_bit(
    cores, tokenizer, reference, method, num_speculative_tokens
):
    """Ten requests on eight slots, so that two of them join when others end."""
    tag = f"together-{method}-{num_speculative_tokens}"
    generations = run(cores[method], requests(tokenizer, tag, num_speculative_tokens))
    assert results(generations, tag) == reference


def test_a_replay_from_the_middle_changes_no_bit(cores, tokenizer, reference):
    replayed = []
    for message in requests(tokenizer, "replay", None):
        token_ids = reference[message.request_id.removesuffix("-replay")][0]
        emitted = token_ids[: len(token_ids) // 2]
        replayed.append(msgspec.structs.replace(message, output_token_ids=emitted))
    for request_id, generation in run(cores["draft_model"], replayed).items():
        token_ids, logprobs, finish_reasons = reference[request_id.removesuffix("-replay")]
        num_emitted = len(token_ids) // 2
        assert generation.token_ids == token_ids[num_emitted:]
        assert generation.logprobs == logprobs[num_emitted:]
        assert generation.finish_reasons == finish_reasons


def test_prompt_logprobs_are_the_same_with_speculation_and_company(cores, tokenizer):
    def scored(core: EngineCore, tag: str, num_speculative_tokens: int | None) -> list[object]:
        messages = [
            add_request(
                f"{i}-{tag}",
                tokenizer.encode(PROMPTS[i]["prompt"]).ids,
                num_speculative_tokens=num_speculative_tokens,
                num_prompt_logprobs=2,
                max_tokens=4,
            )
            for i in range(3)
        ]
        if num_speculative_tokens == 0:
            return [g.prompt_logprobs for g in run_alone(core, messages).values()]
        return [g.prompt_logprobs for g in run(core, messages).values()]

    alone = scored(cores["none"], "scored-alone", 0)
    assert scored(cores["suffix"], "scored", None) == alone
    assert scored(cores["draft_model"], "scored", 4) == alone


@pytest.fixture(scope="module")
def greedy_texts(
    model_dir: Path, draft_dir: Path, tokenizer: Tokenizer
) -> list[tuple[list[int], list[int]]]:
    """The shortest prompts and what the engine writes in float32, all together, with drafts."""
    config = EngineConfig(
        model_path=str(model_dir),
        dtype="float32",
        max_model_len=1024,
        speculative=SpeculativeConfig(
            method="suffix_and_draft_model", draft_model_path=str(draft_dir)
        ),
    )
    core, _ = build_core(config)
    prompts = [tokenizer.encode(prompt).ids for prompt in ORACLE_PROMPTS]
    generations = run(
        core,
        [add_request(str(i), ids, max_tokens=NUM_ORACLE_TOKENS) for i, ids in enumerate(prompts)],
    )
    return [(ids, generations[str(i)].token_ids) for i, ids in enumerate(prompts)]


@pytest.fixture(scope="module")
def oracle(model_dir: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


@torch.inference_mode()
def test_greedy_text_in_float32_is_that_of_transformers(oracle, greedy_texts):
    """Behind every beginning of a text, its next token is the one that transformers takes."""
    for prompt, text in greedy_texts:
        logits = oracle(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == text
        assert len(text) == NUM_ORACLE_TOKENS or text[-1] == oracle.config.eos_token_id


@torch.inference_mode()
def test_greedy_text_in_float32_is_that_of_transformers_generate(oracle, greedy_texts):
    for prompt, text in greedy_texts[:NUM_GENERATED]:
        output = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NUM_ORACLE_TOKENS,
            do_sample=False,
        )
        assert output[0, len(prompt) :].tolist() == text
