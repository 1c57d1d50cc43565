"""Logits processing, each rule by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from engine.messages import SamplingParams
from engine.sampling.logits import process_logits
from engine.sampling.sampler import choose
from engine.sampling.token_history import TokenHistory
from tests.engine.fake_backend import EOS as GRAMMAR_EOS
from tests.engine.fake_backend import VOCAB_SIZE, grammar_compiler

LOGITS = [4.0, -4.0, 2.0, -2.0, 1.0, 0.0]
PROMPT = [0, 0, 1]
OUTPUT = [2, 2, 2, 3]
EOS = (5,)
INF = float("inf")


def processed(
    prompt: list[int] = PROMPT,
    output: list[int] = OUTPUT,
    eos: tuple[int, ...] = EOS,
    **fields: Any,
) -> list[float]:
    logits = np.array(LOGITS, dtype=np.float32)
    params = SamplingParams(max_tokens=9, **fields)
    return process_logits(logits, params, TokenHistory(prompt, output), eos).tolist()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, LOGITS, id="nothing-applies"),
        # Positive logits are divided, negative ones multiplied, of prompt and output, once each.
        pytest.param(
            {"repetition_penalty": 2.0}, [2.0, -8.0, 1.0, -4.0, 1.0, 0.0], id="repetition"
        ),
        pytest.param(
            {"repetition_penalty": 0.5}, [8.0, -2.0, 4.0, -1.0, 1.0, 0.0], id="repetition-reward"
        ),
        # Per occurrence in the output.
        pytest.param({"frequency_penalty": 0.5}, [4.0, -4.0, 0.5, -2.5, 1.0, 0.0], id="frequency"),
        # Once, for being in the output.
        pytest.param({"presence_penalty": 0.5}, [4.0, -4.0, 1.5, -2.5, 1.0, 0.0], id="presence"),
        pytest.param(
            {"presence_penalty": -0.5}, [4.0, -4.0, 2.5, -1.5, 1.0, 0.0], id="presence-reward"
        ),
        pytest.param(
            {"logit_bias": {1: 10.0, 4: -0.5}}, [4.0, 6.0, 2.0, -2.0, 0.5, 0.0], id="bias"
        ),
        # 2 / 2 - 3 * 0.25 - 0.5 + 8 for token 2.
        pytest.param(
            {
                "repetition_penalty": 2.0,
                "frequency_penalty": 0.25,
                "presence_penalty": 0.5,
                "logit_bias": {2: 8.0},
            },
            [2.0, -8.0, 7.75, -4.75, 1.0, 0.0],
            id="together",
        ),
    ],
)
def test_penalties_and_bias_are_as_documented(
    fields: dict[str, Any], expected: list[float]
) -> None:
    assert processed(**fields) == expected


def test_without_output_only_the_repetition_penalty_sees_the_prompt() -> None:
    fields = {"frequency_penalty": 1.0, "presence_penalty": 1.0}
    assert processed(output=[], **fields) == LOGITS
    assert processed(output=[], repetition_penalty=2.0, **fields) == [2.0, -8.0, 2.0, -2.0, 1.0, 0]


@pytest.mark.parametrize(
    ("min_tokens", "masked"),
    [pytest.param(4, set(), id="reached"), pytest.param(5, {1, 4, 5}, id="one-is-missing")],
)
def test_min_tokens_forbids_eos_and_stop_ids_until_it_is_reached(
    min_tokens: int, masked: set[int]
) -> None:
    logits = processed(min_tokens=min_tokens, stop_token_ids=[4, 1])
    assert {i for i, value in enumerate(logits) if value == -INF} == masked


def test_min_tokens_beats_a_bias_for_eos() -> None:
    assert processed(min_tokens=5, logit_bias={5: 100.0})[5] == -INF


def test_min_tokens_without_any_end_token_changes_nothing() -> None:
    assert processed(min_tokens=5, eos=()) == LOGITS


def test_the_input_is_not_touched() -> None:
    logits = np.array(LOGITS, dtype=np.float32)
    params = SamplingParams(
        max_tokens=9,
        repetition_penalty=2.0,
        presence_penalty=1.0,
        logit_bias={0: 1.0},
        min_tokens=9,
    )
    process_logits(logits, params, TokenHistory(PROMPT, OUTPUT), EOS)
    assert logits.tolist() == LOGITS


def test_an_extended_history_is_that_of_the_longer_output_and_leaves_the_original() -> None:
    history = TokenHistory(PROMPT, OUTPUT)
    extended = history.extended([4, 2])
    for seen, output in ((history, OUTPUT), (extended, [*OUTPUT, 4, 2])):
        token_ids, counts = seen.output_counts()
        expected = {token_id: output.count(token_id) for token_id in output}
        assert dict(zip(token_ids.tolist(), counts.tolist(), strict=True)) == expected
        assert set(seen.seen().tolist()) == {*PROMPT, *output}
        assert seen.num_output_tokens == len(output)


def test_each_position_is_penalised_for_the_tokens_before_it() -> None:
    history = TokenHistory(PROMPT)
    params = SamplingParams(max_tokens=9, frequency_penalty=1.0)
    logits = np.array(LOGITS, dtype=np.float32)
    values = []
    for token_id in (2, 4, 2):
        values.append(float(process_logits(logits, params, history, EOS)[2]))
        history.append(token_id)
    values.append(float(process_logits(logits, params, history, EOS)[2]))
    assert values == [2.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "forbidden"),
    [
        pytest.param({"allowed_token_ids": [1, 3]}, {0, 2, 4, 5}, id="allowed"),
        pytest.param(
            {"allowed_token_ids": [1], "logit_bias": {2: 9.0}}, {0, 2, 3, 4, 5}, id="bias"
        ),
        pytest.param({"bad_words": [[4]]}, {4}, id="one-token"),
        # The output ends with 2, 3.
        pytest.param({"bad_words": [[3, 1]]}, {1}, id="beginning-matches"),
        pytest.param({"bad_words": [[2, 3, 0], [2, 2, 3, 1]]}, {0, 1}, id="long-beginnings-match"),
        pytest.param({"bad_words": [[2, 1], [0, 2, 2, 2, 3, 4]]}, set(), id="no-match"),
        pytest.param({"allowed_token_ids": [4], "bad_words": [[3, 4]]}, set(range(6)), id="all"),
    ],
)
def test_tokens_outside_the_allowed_ones_and_the_ends_of_bad_words_are_forbidden(
    fields: dict[str, Any], forbidden: set[int]
) -> None:
    assert {i for i, value in enumerate(processed(**fields)) if value == -INF} == forbidden


def test_the_prompt_does_not_begin_a_bad_word() -> None:
    assert processed(prompt=[2, 3], output=[], bad_words=[[3, 1]]) == LOGITS
    assert processed(prompt=[2], output=[3], bad_words=[[2, 3, 1]]) == LOGITS


def test_a_grammar_forbids_what_does_not_fit_and_its_end_where_eos_is_ignored() -> None:
    grammar = grammar_compiler().compile("start: /ab?/").result().copy()
    grammar.append(1)
    logits = np.zeros(VOCAB_SIZE, dtype=np.float32)
    for ignore_eos, expected in ((False, [GRAMMAR_EOS, 2]), (True, [2])):
        params = SamplingParams(max_tokens=9, ignore_eos=ignore_eos)
        found = process_logits(
            logits, params, TokenHistory(()), (GRAMMAR_EOS,), grammar.token_mask()
        )
        assert np.flatnonzero(found > -INF).tolist() == expected


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("best", range(VOCAB_SIZE))
def test_greedy_takes_the_largest_logit_that_a_grammar_allows(best: int, ignore_eos: bool) -> None:
    grammar = grammar_compiler().compile("start: /ab?/").result().copy()
    grammar.append(1)
    logits = np.arange(VOCAB_SIZE, 0, -1, dtype=np.float32)
    logits[best] = 99
    params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=ignore_eos)
    found = choose(logits, params, TokenHistory(()), (GRAMMAR_EOS,), position=1, grammar=grammar)
    allowed = [2] if ignore_eos else [GRAMMAR_EOS, 2]
    assert found == max(allowed, key=lambda token_id: logits[token_id])


def test_greedy_takes_nothing_where_all_that_a_grammar_allows_is_impossible() -> None:
    grammar = grammar_compiler().compile("start: /ab?/").result().copy()
    grammar.append(1)
    assert GRAMMAR_EOS in grammar.token_mask()
    params = SamplingParams(max_tokens=9, temperature=0.0)
    logits = np.full(VOCAB_SIZE, -INF, dtype=np.float32)
    assert choose(logits, params, TokenHistory(()), (), position=1, grammar=grammar) is None


def test_a_history_that_is_asked_again_and_again_has_the_counts_of_all_its_tokens() -> None:
    rng = np.random.default_rng(0)
    history, output = TokenHistory(range(100)), []
    for token_id in rng.integers(50, 400, size=1000).tolist():
        history.append(token_id)
        output.append(token_id)
        if token_id % 3 == 0:
            token_ids, counts = history.output_counts()
            found = dict(zip(token_ids.tolist(), counts.tolist(), strict=True))
            assert found == Counter(output)
        if token_id % 5 == 0:
            seen = history.seen().tolist()
            assert sorted(seen) == sorted({*range(100), *output})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_is_chosen_where_all_are_forbidden(temperature: float) -> None:
    params = SamplingParams(
        max_tokens=9, temperature=temperature, allowed_token_ids=[4], bad_words=[[4]]
    )
    logits = np.array(LOGITS, dtype=np.float32)
    assert choose(logits, params, TokenHistory(PROMPT, OUTPUT), EOS, position=7) is None
