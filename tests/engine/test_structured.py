"""Grammars and other constraints in the engine core, on a model that can be computed by hand."""

from __future__ import annotations

import re
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from engine.config import GrammarLimits, SpeculativeConfig
from engine.grammar.compiler import GrammarCompiler
from engine.spec_decode.draft_model import DraftModelProposer
from engine.spec_decode.grammar import GrammarProposer
from engine.spec_decode.prediction import PredictionProposer
from engine.spec_decode.suffix import SuffixProposer
from tests.engine.driver import Generation, add_request, run, run_one, take
from tests.engine.fake_backend import (
    EOS,
    VOCAB_SIZE,
    FakeBackend,
    FakeTokenizer,
    ScriptedProposer,
    build_core,
    continuation,
    text_of,
)

PROMPT = [5, 3, 2, 7, 1]
A, B, C, D = 1, 2, 3, 4

PROPOSERS = {
    "none": lambda: [],
    "all_kinds": lambda: [
        PredictionProposer(),
        GrammarProposer(),
        SuffixProposer(SpeculativeConfig()),
        draft_model(),
    ],
    "predictions": lambda: [PredictionProposer()],
    "draft_model": lambda: [draft_model()],
    "draft_model_of_another_text": lambda: [draft_model(vocab_size=VOCAB_SIZE - 3)],
    "without_a_thought_of_the_grammar": lambda: [ScriptedProposer(wrong_every=3)],
}


def draft_model(**kwargs: int) -> DraftModelProposer:
    return DraftModelProposer(
        FakeBackend(**kwargs), vocab_size=VOCAB_SIZE, max_num_batched_tokens=8
    )


def regex(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)


def generate(
    proposers: str = "none",
    *,
    eos: tuple[int, ...] = (EOS,),
    num_speculative_tokens: int | None = None,
    **params: Any,
) -> Generation:
    core = build_core(FakeBackend(eos_token_ids=eos), PROPOSERS[proposers]())
    message = add_request(
        "a",
        PROMPT,
        num_speculative_tokens=num_speculative_tokens,
        **{"max_tokens": 30, **params},
    )
    return run_one(core, message)


@pytest.mark.parametrize(
    ("pattern", "max_tokens", "text", "finish_reason"),
    [
        pytest.param("hello", 30, "hello", "stop", id="one-text"),
        pytest.param("(yes|no)", 30, "yes", "stop", id="choice"),
        pytest.param("[a-f]{3}", 30, "aba", "stop", id="counted"),
        pytest.param("", 30, "", "stop", id="nothing"),
        pytest.param("hello", 3, "hel", "length", id="cut"),
        pytest.param("hello", 5, "hello", "stop", id="complete-with-the-last-token"),
        pytest.param("a*", 4, "", "stop", id="may-end-at-once"),
    ],
)
@pytest.mark.parametrize("proposers", PROPOSERS)
def test_the_output_matches_the_grammar_and_ends_where_it_is_complete(
    proposers, pattern, max_tokens, text, finish_reason
):
    generation = generate(proposers, grammar=regex(pattern), max_tokens=max_tokens)
    assert (generation.finish_reasons, generation.error) == ([finish_reason], None)
    assert re.fullmatch(pattern, text_of(generation.token_ids)) or finish_reason == "length"
    assert len(text_of(generation.token_ids)) == len(text)


def test_an_output_that_cannot_go_on_ends_behind_its_last_text_without_a_stop_token():
    core = build_core(FakeBackend(eos_token_ids=(EOS,)))
    core.add_request(add_request("a", PROMPT, grammar=regex("hello")))
    outputs = []
    while core.has_work:
        outputs += core.step().outputs
    assert outputs[-1].new_token_ids == [15]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("stop", None)


def test_an_output_that_could_go_on_ends_with_eos_as_its_stop_token():
    core = build_core(FakeBackend(eos_token_ids=(EOS,)))
    message = add_request("a", PROMPT, grammar=regex("ab*"), logit_bias={EOS: 100.0})
    core.add_request(message)
    outputs = []
    while core.has_work:
        outputs += core.step().outputs
    assert outputs[-1].new_token_ids == [EOS]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("stop", EOS)


COMBINATIONS: dict[str, tuple[dict[str, Any], str | None]] = {
    "ignored_eos_ends_what_cannot_go_on": ({"grammar": regex("abc"), "ignore_eos": True}, "stop"),
    "ignored_eos_goes_on_where_it_can": ({"grammar": regex("a+"), "ignore_eos": True}, "length"),
    "min_tokens_cannot_force_more": ({"grammar": regex("abc"), "min_tokens": 20}, "stop"),
    "min_tokens_forbids_eos": ({"grammar": regex("a+"), "min_tokens": 20}, None),
    "eos_is_not_among_the_allowed": (
        {"grammar": regex("ab*"), "allowed_token_ids": [A]},
        "stop",
    ),
    "nothing_is_both_allowed_and_grammatical": (
        {"grammar": regex("abc"), "allowed_token_ids": [D]},
        "error",
    ),
    "a_bad_word_is_all_that_the_grammar_allows": (
        {"grammar": regex("xyz"), "bad_words": [[25]]},
        "error",
    ),
    "a_stop_token_in_the_middle": ({"grammar": regex("xyz"), "stop_token_ids": [25]}, "stop"),
    "a_bias_is_no_match_for_the_grammar": (
        {"grammar": regex("xyz"), "logit_bias": {A: 100.0, 24: -100.0}},
        "stop",
    ),
    "allowed_and_bad_without_a_grammar": (
        {"allowed_token_ids": [A, B, C], "bad_words": [[A, B], [C]]},
        "length",
    ),
    "all_bad_without_a_grammar": ({"allowed_token_ids": [A], "bad_words": [[A, A]]}, "error"),
    "penalties": (
        {"grammar": regex("[ab]{9}[cd]*"), "frequency_penalty": 2.0, "repetition_penalty": 1.5},
        None,
    ),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_combined_constraints_have_one_clear_outcome_whatever_is_drafted(name, temperature):
    fields, finish_reason = COMBINATIONS[name]
    plain = generate(temperature=temperature, num_logprobs=2, **fields)
    if finish_reason is not None:
        assert plain.finish_reasons == [finish_reason]
    assert (plain.error is not None) == (plain.finish_reasons == ["error"])
    for proposers in PROPOSERS:
        for num_speculative_tokens in (None, 1, 5):
            drafted = generate(
                proposers,
                num_speculative_tokens=num_speculative_tokens,
                temperature=temperature,
                num_logprobs=2,
                **fields,
            )
            for field in ("token_ids", "logprobs", "finish_reasons", "error"):
                assert getattr(drafted, field) == getattr(plain, field), (proposers, field)


def test_the_grammar_is_followed_without_any_eos_token():
    generation = generate(eos=(), grammar=regex("(yes|no)"))
    assert text_of(generation.token_ids) in ("yes", "no")
    assert generation.finish_reasons == ["stop"]


FORCED = regex("abcdefghijklmnop[xyz]qrstuvw")


def steps(proposers: str, **kwargs: Any) -> tuple[Generation, int]:
    backend = FakeBackend(eos_token_ids=(EOS,))
    core = build_core(backend, PROPOSERS[proposers]())
    generation = run_one(core, add_request("a", PROMPT, max_tokens=40, **kwargs))
    return generation, len(backend.forwards)


def test_forced_text_costs_few_steps():
    plain, num_plain_steps = steps("none", grammar=FORCED)
    drafted, num_steps = steps("all_kinds", grammar=FORCED, num_speculative_tokens=7)
    assert drafted.token_ids == plain.token_ids
    # `abc` from the prompt; 7 + 1, 5 + 1 with the free letter, and 7 tokens.
    assert (num_plain_steps, num_steps) == (22, 4)
    assert drafted.num_accepted_tokens == drafted.num_draft_tokens > 0


def test_no_speculation_means_none_by_the_grammar_or_a_prediction_either():
    generation, _ = steps(
        "all_kinds", grammar=FORCED, num_speculative_tokens=0, prediction_token_ids=[A, B, C]
    )
    assert generation.num_draft_tokens == 0


def test_the_kind_of_a_draft_is_reported():
    core = build_core(FakeBackend(eos_token_ids=(EOS,)), PROPOSERS["all_kinds"]())
    text = continuation(PROMPT, 6)
    core.add_request(
        add_request("predicted", PROMPT, max_tokens=8, prediction_token_ids=[*text, 0, 0])
    )
    core.add_request(add_request("forced", PROMPT, max_tokens=8, grammar=FORCED))
    kinds: dict[str, set[str | None]] = {"predicted": set(), "forced": set()}
    while core.has_work:
        for output in core.step().outputs:
            if output.num_draft_tokens:
                kinds[output.request_id].add(output.draft_kind)
    assert kinds["predicted"] >= {"prediction"}
    assert kinds["forced"] == {"grammar"}


def test_drafted_tokens_that_the_grammar_refuses_are_not_verified_and_not_counted():
    core = build_core(FakeBackend(eos_token_ids=(EOS,)), [PredictionProposer()])
    message = add_request(
        "a",
        PROMPT,
        num_speculative_tokens=7,
        prediction_token_ids=[24, 25, 26, A, A, A, A],
        grammar=regex("(xyz|xyw){2}"),
    )
    generation = run_one(core, message)
    assert generation.num_draft_tokens <= 2


def test_a_good_prediction_saves_steps_and_a_bad_one_changes_nothing():
    fields = {"temperature": 1.0, "seed": 3, "ignore_eos": True}
    plain, num_plain_steps = steps("none", **fields)
    text = plain.token_ids
    edited = [*text[:12], 9, 9, *text[12:]]
    num_steps = {}
    for name, prediction in {"good": text, "edited": edited, "bad": text[::-1]}.items():
        drafted, num_steps[name] = steps(
            "predictions", prediction_token_ids=prediction, num_speculative_tokens=7, **fields
        )
        assert drafted.token_ids == text
    assert (num_plain_steps, num_steps["good"]) == (40, 6)
    # Two more around the edit: the rest of a draft is lost, and three tokens find the place again.
    assert num_steps["good"] < num_steps["edited"] <= num_steps["good"] + 4 < num_steps["bad"]


@pytest.mark.parametrize("num_emitted", range(1, 9))
@pytest.mark.parametrize("proposers", ["none", "all_kinds"])
def test_a_replay_goes_on_in_the_middle_of_the_grammar(proposers, num_emitted):
    pattern = "abcdefg(yes|no)[a-f]{3,5}"
    core = build_core(FakeBackend(eos_token_ids=(EOS,)), PROPOSERS[proposers]())
    message = add_request("a", PROMPT, max_tokens=40, grammar=regex(pattern))
    whole = run_one(core, message)
    emitted = whole.token_ids[:num_emitted]
    rest = run_one(core, msgspec.structs.replace(message, output_token_ids=emitted))
    assert emitted + rest.token_ids == whole.token_ids
    assert rest.finish_reasons == whole.finish_reasons


def test_an_output_so_far_that_does_not_match_ends_the_replay_with_an_error():
    core = build_core(FakeBackend(eos_token_ids=(EOS,)))
    message = add_request("a", PROMPT, grammar=regex("abc"), output_token_ids=[D])
    generations = run(core, [message, add_request("b", PROMPT, max_tokens=5, ignore_eos=True)])
    assert generations["a"].finish_reasons == ["error"]
    assert generations["a"].error
    assert generations["b"].token_ids == continuation(PROMPT, 5)


def gated_compiler(gate: threading.Event) -> GrammarCompiler:
    """Nothing is compiled before the gate is open."""

    def load() -> LLTokenizer:
        assert gate.wait(30)
        return LLTokenizer(FakeTokenizer())

    return GrammarCompiler(load)


def test_a_request_is_not_held_up_by_the_grammar_of_another():
    gate = threading.Event()
    core = build_core(FakeBackend(eos_token_ids=(EOS,)), grammars=gated_compiler(gate))
    generations: dict[str, Generation] = {}
    core.add_request(add_request("structured", PROMPT, grammar=regex("hello")))
    core.add_request(add_request("free", PROMPT, max_tokens=5))
    while "free" not in generations or not generations["free"].finish_reasons:
        take(generations, core.step())
    assert "structured" not in generations
    assert core.has_work
    assert core.step().stats.num_waiting == 1
    gate.set()
    while core.has_work:
        take(generations, core.step())
    assert text_of(generations["structured"].token_ids) == "hello"


def test_an_abort_while_the_grammar_compiles_is_answered_once():
    gate = threading.Event()
    core = build_core(FakeBackend(eos_token_ids=(EOS,)), grammars=gated_compiler(gate))
    core.add_request(add_request("a", PROMPT, grammar=regex("hello")))
    core.step()
    core.abort_request("a")
    generations = run(core, [])
    gate.set()
    assert generations["a"].finish_reasons == ["abort"]
    assert run_one(core, add_request("a", PROMPT, grammar=regex("hello"))).finish_reasons == [
        "stop"
    ]


@pytest.mark.parametrize("proposers", PROPOSERS)
def test_a_grammar_that_gets_too_costly_in_the_middle_ends_its_own_request_only(proposers):
    core = build_core(
        FakeBackend(eos_token_ids=(EOS,), max_model_len=64),
        PROPOSERS[proposers](),
        grammars=GrammarCompiler(
            lambda: LLTokenizer(FakeTokenizer()), GrammarLimits(step_max_items=60)
        ),
    )
    costly = add_request("costly", PROMPT, max_tokens=50, grammar='start: e\ne: e e | "a" | "b"')
    generations = run(core, [costly, add_request("free", PROMPT, max_tokens=20, ignore_eos=True)])
    assert generations["costly"].finish_reasons == ["error"]
    assert generations["costly"].error
    assert generations["free"].token_ids == continuation(PROMPT, 20)


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "c", "[ab]", "[a-z]", "abc"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "?", "{1,3}"])).map(lambda p: f"({p[0]}){p[1]}"),
    ),
    max_leaves=8,
)


@given(
    pattern=PATTERNS,
    prompt=st.lists(st.integers(1, 26), min_size=1, max_size=5),
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 1.0]),
    proposers=st.sampled_from(sorted(PROPOSERS)),
)
def test_any_grammar_gives_the_same_match_whatever_is_drafted(
    pattern, prompt, seed, temperature, proposers
):
    message = add_request(
        "a", prompt, max_tokens=20, grammar=regex(pattern), seed=seed, temperature=temperature
    )
    plain = run_one(build_core(FakeBackend(eos_token_ids=(EOS,))), message)
    core = build_core(FakeBackend(eos_token_ids=(EOS,)), PROPOSERS[proposers]())
    drafted = run_one(core, msgspec.structs.replace(message, prediction_token_ids=plain.token_ids))
    assert drafted.token_ids == plain.token_ids
    assert drafted.finish_reasons == plain.finish_reasons
    if plain.finish_reasons == ["stop"]:
        assert re.fullmatch(pattern, text_of(plain.token_ids))
