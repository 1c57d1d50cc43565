"""The engine core on a model that can be computed by hand."""

from __future__ import annotations

import pytest

from engine.config import SpeculativeConfig
from engine.core import EngineCore
from engine.spec_decode.draft_model import DraftModelProposer
from engine.spec_decode.suffix import SuffixProposer
from tests.engine.driver import Generation, add_request, run, run_one, take
from tests.engine.fake_backend import (
    VOCAB_SIZE,
    FakeBackend,
    ScriptedProposer,
    build_core,
    continuation,
)

PROMPT = [5, 3, 2, 7, 1]


def draft_model(**kwargs: int) -> DraftModelProposer:
    return DraftModelProposer(
        FakeBackend(**kwargs), vocab_size=VOCAB_SIZE, max_num_batched_tokens=8
    )


PROPOSERS = {
    "none": lambda: [],
    "always_right": lambda: [ScriptedProposer()],
    "always_wrong": lambda: [ScriptedProposer(wrong_every=1)],
    "alternating": lambda: [ScriptedProposer(wrong_every=2)],
    "every_fourth_wrong": lambda: [ScriptedProposer(wrong_every=4)],
    "suffix": lambda: [SuffixProposer(SpeculativeConfig())],
    "draft_model": lambda: [draft_model()],
    "draft_model_of_another_text": lambda: [draft_model(vocab_size=VOCAB_SIZE - 3)],
    "draft_model_with_padded_vocab": lambda: [draft_model(vocab_size=VOCAB_SIZE + 1)],
}


@pytest.mark.parametrize("num_speculative_tokens", [None, 0, 1, 3, 5])
@pytest.mark.parametrize("proposers", PROPOSERS.values(), ids=PROPOSERS.keys())
def test_text_is_the_targets_own_whatever_is_proposed(proposers, num_speculative_tokens):
    core = build_core(proposers=proposers())
    message = add_request("a", PROMPT, max_tokens=20, num_speculative_tokens=num_speculative_tokens)
    assert run_one(core, message).token_ids == continuation(PROMPT, 20)


@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_never_more_than_max_tokens_and_drafts_fit_what_is_left(max_tokens):
    core = build_core(proposers=[ScriptedProposer()])
    generation = run_one(
        core, add_request("a", PROMPT, max_tokens=max_tokens, num_speculative_tokens=7)
    )
    assert generation.token_ids == continuation(PROMPT, max_tokens)
    assert generation.finish_reasons == ["length"]
    assert generation.num_draft_tokens <= max(0, max_tokens - 2)


def test_perfect_drafts_are_all_accepted_and_counted():
    core = build_core(proposers=[ScriptedProposer()])
    generation = run_one(core, add_request("a", PROMPT, max_tokens=17, num_speculative_tokens=7))
    # The prompt gives 1 token, then two steps of 7 drafted and 1 bonus token.
    assert (generation.num_draft_tokens, generation.num_accepted_tokens) == (14, 14)


def test_eos_inside_an_accepted_draft_ends_the_request():
    eos = continuation(PROMPT, 4)[3]
    core = build_core(FakeBackend(eos_token_ids=(eos,)), [ScriptedProposer()])
    generation = run_one(core, add_request("a", PROMPT, max_tokens=20, num_speculative_tokens=7))
    assert generation.token_ids == continuation(PROMPT, 4)
    assert generation.finish_reasons == ["stop"]
    assert generation.num_accepted_tokens == 3


@pytest.mark.parametrize("shortfall", range(0, 9))
def test_generation_ends_where_the_context_ends(shortfall):
    backend = FakeBackend(max_model_len=32)
    prompt = [1 + i % 5 for i in range(31 - shortfall)]
    core = build_core(backend, [ScriptedProposer()])
    generation = run_one(core, add_request("a", prompt, max_tokens=50, num_speculative_tokens=7))
    assert generation.token_ids == continuation(prompt, 1 + shortfall)
    assert generation.finish_reasons == ["length"]


def test_a_draft_model_with_a_shorter_context_stops_drafting_where_it_ends():
    core = build_core(proposers=[draft_model(max_model_len=12)])
    generation = run_one(core, add_request("a", PROMPT, max_tokens=30, num_speculative_tokens=3))
    assert generation.token_ids == continuation(PROMPT, 30)
    assert 0 < generation.num_draft_tokens <= 12


@pytest.mark.parametrize("proposers", PROPOSERS.values(), ids=PROPOSERS.keys())
def test_a_request_emits_among_others_what_it_emits_alone(proposers):
    core = build_core(proposers=proposers())
    messages = [
        add_request(f"{i}", [i + 1, 2 * i + 1, 7] * (i + 1), max_tokens=9 + i) for i in range(9)
    ]
    generations = run(core, messages)
    for message in messages:
        expected = continuation(message.prompt_token_ids, message.sampling_params.max_tokens)
        assert generations[message.request_id].token_ids == expected


def test_a_request_that_joins_later_emits_what_it_emits_alone():
    core = build_core(proposers=[ScriptedProposer(wrong_every=3)])
    generations: dict[str, Generation] = {}
    core.add_request(add_request("first", PROMPT, max_tokens=30))
    for _ in range(4):
        take(generations, core.step())
    generations |= run(core, [add_request("second", [9, 9, 4], max_tokens=12)])
    assert generations["second"].token_ids == continuation([9, 9, 4], 12)


def test_a_replayed_request_goes_on_where_it_was():
    core = build_core()
    text = continuation(PROMPT, 12)
    message = add_request("a", PROMPT, max_tokens=12, output_token_ids=text[:7])
    assert run_one(core, message).token_ids == text[7:]


def test_a_finished_prompt_is_reused_by_the_next_request():
    backend = FakeBackend()
    core = build_core(backend)
    prompt = [i % 9 for i in range(24)]
    first = run_one(core, add_request("a", prompt, max_tokens=5))
    second = run_one(core, add_request("b", prompt, max_tokens=5))
    assert second.token_ids == first.token_ids
    assert second.num_cached_tokens == 23


def test_only_a_request_with_the_same_cache_salt_reuses_a_prompt():
    core = build_core(FakeBackend(num_slots=4))
    prompt = [i % 9 for i in range(24)]
    cached = [
        run_one(core, add_request(f"{i}", prompt, max_tokens=5, cache_salt=cache_salt))
        for i, cache_salt in enumerate(["", "a", "b", "a", "", "b"])
    ]
    assert [generation.num_cached_tokens for generation in cached] == [0, 0, 0, 23, 23, 23]
    assert {tuple(generation.token_ids) for generation in cached} == {
        tuple(continuation(prompt, 5))
    }


def test_a_prompt_that_is_being_read_is_waited_for_under_the_same_cache_salt_only():
    core = build_core(max_num_batched_tokens=128)
    prompt = [i % 9 for i in range(40)]
    generations = run(
        core,
        [
            add_request(f"{i}", prompt, max_tokens=3, cache_salt=cache_salt)
            for i, cache_salt in enumerate(["a", "a", "b", "b"])
        ],
    )
    assert {tuple(g.token_ids) for g in generations.values()} == {tuple(continuation(prompt, 3))}
    assert sorted(g.num_cached_tokens for g in generations.values()) == [0, 0, 39, 39]


@pytest.mark.parametrize(("other_salt", "is_reused"), [("a", True), ("", False)])
def test_the_draft_model_reads_a_prompt_of_another_cache_salt_again(other_salt, is_reused):
    drafts = FakeBackend(num_slots=1)
    proposer = DraftModelProposer(drafts, vocab_size=VOCAB_SIZE, max_num_batched_tokens=64)
    core = build_core(FakeBackend(num_slots=1), [proposer])
    prompt = [i % 9 for i in range(40)]
    fields = {"max_tokens": 6, "num_speculative_tokens": 2}
    run_one(core, add_request("first", prompt, cache_salt="a", **fields))
    drafts.forwards.clear()
    run_one(core, add_request("second", prompt, cache_salt=other_salt, **fields))
    num_computed = sum(len(row.token_ids) for rows in drafts.forwards for row in rows)
    assert (0 < num_computed < 10) if is_reused else num_computed > 40


@pytest.mark.parametrize(("other_salt", "is_drafted"), [("a", True), ("", False), ("b", False)])
def test_texts_of_another_cache_salt_are_not_drafted(other_salt, is_drafted):
    core = build_core(proposers=[SuffixProposer(SpeculativeConfig())])
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    fields = {"max_tokens": 12, "temperature": 1.0, "seed": 1, "num_speculative_tokens": 5}
    run_one(core, add_request("first", prompt, cache_salt="a", **fields))
    second = run_one(core, add_request("second", prompt, cache_salt=other_salt, **fields))
    assert (second.num_accepted_tokens >= 8) == is_drafted


def test_requests_with_one_prompt_compute_it_once():
    backend = FakeBackend()
    core = build_core(backend, max_num_batched_tokens=64)
    prompt = [i % 9 for i in range(40)]
    generations = run(core, [add_request(str(i), prompt, max_tokens=3) for i in range(4)])
    assert {tuple(g.token_ids) for g in generations.values()} == {tuple(continuation(prompt, 3))}
    computed = sum(len(row.token_ids) for rows in backend.forwards for row in rows)
    assert computed < 40 + 4 * 4


def test_a_prefix_is_not_taken_from_a_slot_that_was_given_away():
    """The owner of the best prefix ends, and its slot is taken, before the copy could be made."""
    backend = FakeBackend(num_slots=2)
    core = build_core(backend)
    prompt = [i % 7 for i in range(30)]
    core.add_request(add_request("owner", prompt, max_tokens=20))
    for _ in range(6):
        core.step()
    core.add_request(add_request("same", [*prompt, 3], max_tokens=6))
    core.abort_request("owner")
    core.add_request(add_request("other", [8] * 20, max_tokens=6))
    generations = run(core, [])
    assert generations["same"].token_ids == continuation([*prompt, 3], 6)
    assert generations["other"].token_ids == continuation([8] * 20, 6)


@pytest.mark.parametrize("num_steps", range(0, 7))
def test_an_abort_at_any_stage_is_answered_once_and_frees_the_slot(num_steps):
    core = build_core(FakeBackend(num_slots=1), [ScriptedProposer()])
    generations: dict[str, Generation] = {}
    core.add_request(add_request("a", [1] * 20, max_tokens=30))
    core.add_request(add_request("waiting", [2] * 20, max_tokens=5))
    for _ in range(num_steps):
        take(generations, core.step())
    core.abort_request("a")
    core.abort_request("a")
    run_with(core, generations)
    assert generations["a"].finish_reasons == ["abort"]
    assert generations["waiting"].token_ids == continuation([2] * 20, 5)


def run_with(core: EngineCore, generations: dict[str, Generation]) -> dict[str, Generation]:
    while core.has_work:
        take(generations, core.step())
    return generations


def test_an_abort_while_waiting_never_takes_a_slot():
    core = build_core(FakeBackend(num_slots=1))
    core.add_request(add_request("a", PROMPT, max_tokens=5))
    core.add_request(add_request("b", PROMPT, max_tokens=5))
    core.step()
    core.abort_request("b")
    generations = run_with(core, {})
    assert generations["b"].finish_reasons == ["abort"]
    assert generations["b"].token_ids == []


BAD_REQUESTS = {
    "empty_prompt": add_request("bad", []),
    "negative_token": add_request("bad", [-1]),
    "token_outside_vocabulary": add_request("bad", [VOCAB_SIZE]),
    "bias_outside_vocabulary": add_request("bad", [1], logit_bias={VOCAB_SIZE: 1.0}),
    "stop_token_outside_vocabulary": add_request("bad", [1], stop_token_ids=[VOCAB_SIZE]),
    "allowed_token_outside_vocabulary": add_request("bad", [1], allowed_token_ids=[VOCAB_SIZE]),
    "bad_word_outside_vocabulary": add_request("bad", [1], bad_words=[[1], [2, VOCAB_SIZE]]),
    "prediction_outside_vocabulary": add_request("bad", [1], prediction_token_ids=[VOCAB_SIZE]),
    "prompt_as_long_as_the_context": add_request("bad", [1] * 64),
}


@pytest.mark.parametrize("message", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_a_request_that_cannot_run_is_answered_with_an_error(message):
    core = build_core()
    generations = run(core, [add_request("good", PROMPT, max_tokens=6), message])
    assert generations["bad"].finish_reasons == ["error"]
    assert generations["bad"].error
    assert generations["good"].token_ids == continuation(PROMPT, 6)


def test_prompt_logprobs_cover_the_prompt_over_several_chunks_and_bypass_the_cache():
    core = build_core()
    prompt = [i % 9 for i in range(30)]
    run_one(core, add_request("a", prompt))
    message = add_request("b", prompt, num_prompt_logprobs=1, num_logprobs=1, max_tokens=2)
    generation = run_one(core, message)
    assert generation.prompt_logprobs is not None
    assert [entry.token_id for entry in generation.prompt_logprobs] == prompt[1:]
    assert generation.num_cached_tokens == 0
    for position, entry in enumerate(generation.prompt_logprobs, start=1):
        assert entry.top[0][0] == continuation(prompt[:position], 1)[0]


def test_no_token_is_generated_for_max_tokens_zero_but_the_prompt_is_scored():
    core = build_core()
    generation = run_one(core, add_request("a", PROMPT, max_tokens=0, num_prompt_logprobs=0))
    assert generation.token_ids == []
    assert generation.finish_reasons == ["length"]
    assert generation.prompt_logprobs is not None
    assert len(generation.prompt_logprobs) == len(PROMPT) - 1


def test_higher_priority_is_served_first():
    core = build_core(FakeBackend(num_slots=1))
    core.add_request(add_request("first", PROMPT, max_tokens=3))
    core.step()
    order = []
    core.add_request(add_request("low", PROMPT, max_tokens=3, priority=5))
    core.add_request(add_request("high", PROMPT, max_tokens=3, priority=-5))
    while core.has_work:
        order += [o.request_id for o in core.step().outputs if o.finish_reason]
    assert order == ["first", "high", "low"]
