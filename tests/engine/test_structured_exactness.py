"""Structured output on the real model: valid, and the same in every bit however it is drafted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from engine.config import EngineConfig, SpeculativeConfig
from engine.core import EngineCore
from engine.messages import AddRequest
from engine.process import build_core
from tests.engine.driver import Generation, add_request, run, run_one

pytestmark = pytest.mark.model

ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
PERSON = {
    "type": "object",
    "properties": {
        "customer_first_name": {"type": "string", "maxLength": 12},
        "customer_age_in_years": {"type": "integer", "minimum": 0, "maximum": 150},
        "newsletter_subscription_status": {"enum": ["subscribed", "unsubscribed"]},
        "is_a_returning_customer": {"type": "boolean"},
    },
    "required": [
        "customer_first_name",
        "customer_age_in_years",
        "newsletter_subscription_status",
        "is_a_returning_customer",
    ],
    "additionalProperties": False,
}
PERSON_TEXT = (
    '{"customer_first_name": "John", "customer_age_in_years": 30, '
    '"newsletter_subscription_status": "subscribed", "is_a_returning_customer": true}'
)
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]: [a-z]{4,12}( [a-z]{2,12}){3,6}\."
LIST = 'start: item{2,5}\nitem: "- " /[A-Z][a-z]{2,14}/ ": " ("good" | "bad" | "unknown") "\\n"'
GRAMMARS = {
    "schema": LLMatcher.grammar_from_json_schema(PERSON, overrides=ONE_LINE),
    "json_object": LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=ONE_LINE),
    "regex": LLMatcher.grammar_from_regex(DATE),
    "choice": LLMatcher.grammar_from_lark('start: "positive" | "negative" | "entirely neutral"'),
    "lark": LLMatcher.grammar_from_lark(LIST),
}
PROMPTS = {
    "schema": "Describe the customer John, 30, as JSON:\n",
    "json_object": 'JSON objects, one on a line:\n{"id": 1}\n{"id": 2}\n{"id": 3}\n',
    "regex": "The date of the meeting and what it is about:\n",
    "choice": "Is 'what a lovely day' positive or negative? It is ",
    "lark": "A list of fruits, and what I think of them:\n",
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 5},
    "filtered": {"temperature": 0.7, "seed": 6, "top_p": 0.9, "frequency_penalty": 0.4},
}
NUM_TOKENS = 60
NUM_SEEDS = 20


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def cores(model_dir: Path) -> dict[str, EngineCore]:
    """Engines without drafts, with lookup, and with the model itself as its draft model."""
    return {
        method: build_core(
            EngineConfig(
                model_path=str(model_dir),
                max_model_len=512,
                enable_prefix_caching=method != "none",
                speculative=SpeculativeConfig(method=method, draft_model_path=str(model_dir)),
            )
        )[0]
        for method in ("none", "suffix", "draft_model")
    }


def requests(
    tokenizer: Tokenizer, tag: str, *, num_speculative_tokens: int | None = None
) -> list[AddRequest]:
    return [
        add_request(
            f"{grammar}-{sampling}-{tag}",
            tokenizer.encode(PROMPTS[grammar]).ids,
            num_speculative_tokens=num_speculative_tokens,
            prediction_token_ids=tokenizer.encode(PERSON_TEXT).ids if tag == "predicted" else [],
            max_tokens=NUM_TOKENS,
            num_logprobs=2,
            grammar=GRAMMARS[grammar],
            **SAMPLING[sampling],
        )
        for grammar in GRAMMARS
        for sampling in SAMPLING
    ]


def results(generations: dict[str, Generation], tag: str) -> dict[str, tuple[object, ...]]:
    return {
        request_id.removesuffix(f"-{tag}"): (g.token_ids, g.logprobs, g.finish_reasons)
        for request_id, g in generations.items()
    }


@pytest.fixture(scope="module")
def reference(cores: dict[str, EngineCore], tokenizer: Tokenizer) -> dict[str, tuple[Any, ...]]:
    """Each request alone, without speculation."""
    messages = requests(tokenizer, "alone")
    return results({m.request_id: run_one(cores["none"], m) for m in messages}, "alone")


def is_person(text: str) -> bool:
    """By the keywords of the schema, and no other code than Python's."""
    found = json.loads(text)
    age = found["customer_age_in_years"]
    return (
        list(found) == PERSON["required"]
        and isinstance(found["customer_first_name"], str)
        and len(found["customer_first_name"]) <= 12
        and isinstance(age, int)
        and 0 <= age <= 150
        and found["newsletter_subscription_status"] in ("subscribed", "unsubscribed")
        and isinstance(found["is_a_returning_customer"], bool)
    )


IS_VALID = {
    "schema": is_person,
    "json_object": lambda text: isinstance(json.loads(text), dict),
    "regex": lambda text: re.fullmatch(DATE, text) is not None,
    "choice": lambda text: text in ("positive", "negative", "entirely neutral"),
    "lark": lambda text: (
        re.fullmatch(r"(- [A-Z][a-z]{2,14}: (good|bad|unknown)\n){2,5}", text) is not None
    ),
}


def test_what_is_complete_is_valid(reference, tokenizer):
    complete = {name for name, (_, _, reasons) in reference.items() if reasons == ["stop"]}
    assert {name.split("-")[0] for name in complete} == set(GRAMMARS)
    for name, (token_ids, _, reasons) in reference.items():
        text = tokenizer.decode(token_ids)
        assert reasons in (["stop"], ["length"])
        if name in complete:
            assert IS_VALID[name.split("-")[0]](text), text


@pytest.mark.parametrize("num_speculative_tokens", [0, 1, 4, 15, None])
@pytest.mark.parametrize("method", ["suffix", "draft_model"])
def test_no_way_to_draft_and_no_company_changes_a_bit(
    cores, tokenizer, reference, method, num_speculative_tokens
):
    tag = f"{method}-{num_speculative_tokens}"
    messages = requests(tokenizer, tag, num_speculative_tokens=num_speculative_tokens)
    generations = run(cores[method], messages)
    assert results(generations, tag) == reference
    num_accepted_tokens = sum(g.num_accepted_tokens for g in generations.values())
    assert (num_accepted_tokens > 0) == (num_speculative_tokens != 0)


def test_a_prediction_changes_no_bit(cores, tokenizer, reference):
    generations = run(cores["suffix"], requests(tokenizer, "predicted"))
    assert results(generations, "predicted") == reference


def test_a_replay_from_the_middle_changes_no_bit(cores, tokenizer, reference):
    replayed = []
    for message in requests(tokenizer, "replay"):
        token_ids = reference[message.request_id.removesuffix("-replay")][0]
        emitted = token_ids[: len(token_ids) // 2]
        replayed.append(msgspec.structs.replace(message, output_token_ids=emitted))
    for request_id, generation in run(cores["suffix"], replayed).items():
        token_ids, logprobs, finish_reasons = reference[request_id.removesuffix("-replay")]
        num_emitted = len(token_ids) // 2
        assert generation.token_ids == token_ids[num_emitted:]
        assert generation.logprobs == logprobs[num_emitted:]
        assert generation.finish_reasons == finish_reasons


@pytest.mark.parametrize("method", ["suffix", "draft_model"])
def test_a_schema_holds_over_many_seeds_with_and_without_speculation(cores, tokenizer, method):
    """vllm#9423, #15554, #27969, openvino.genai#4081, lmdeploy#4559: grammar and speculation."""

    def messages(num_speculative_tokens: int | None) -> list[AddRequest]:
        return [
            add_request(
                f"seed{seed}-{num_speculative_tokens}",
                tokenizer.encode(PROMPTS["schema"]).ids,
                num_speculative_tokens=num_speculative_tokens,
                max_tokens=NUM_TOKENS,
                grammar=GRAMMARS["schema"],
                temperature=1.0,
                seed=seed,
            )
            for seed in range(NUM_SEEDS)
        ]

    off, on = (list(run(cores[method], messages(num_tokens)).values()) for num_tokens in (0, None))
    assert [g.token_ids for g in on] == [g.token_ids for g in off]
    assert len({tuple(g.token_ids) for g in on}) > NUM_SEEDS / 2
    for generation in on:
        assert generation.finish_reasons == ["stop"]
        assert is_person(tokenizer.decode(generation.token_ids))


def num_steps(core: EngineCore, message: AddRequest) -> int:
    core.add_request(message)
    return sum(core.step().stats.phase == "decode" for _ in iter(lambda: core.has_work, False))


def test_keys_brackets_and_quotes_cost_few_target_steps(cores, tokenizer):
    message = add_request(
        "plain",
        tokenizer.encode(PROMPTS["schema"]).ids,
        max_tokens=NUM_TOKENS,
        grammar=GRAMMARS["schema"],
        # Nobody has written this before: lookup has no part in it.
        cache_salt="keys",
        num_speculative_tokens=0,
    )
    num_plain_steps = num_steps(cores["suffix"], message)
    drafted = msgspec.structs.replace(
        message, request_id="drafted", num_speculative_tokens=15, cache_salt="none"
    )
    assert num_steps(cores["suffix"], drafted) < num_plain_steps / 2
