"""Log-probabilities: normalised, ordered, and the same number wherever they appear."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.sampling.logprobs import token_logprobs

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 2.0, 3.0], dtype=np.float32)


def test_probabilities_of_the_whole_vocabulary_sum_to_one() -> None:
    logits = np.random.default_rng(0).normal(scale=10, size=5000).astype(np.float32)
    found = token_logprobs(logits, 0, 5000)
    assert math.fsum(math.exp(logprob) for _, logprob in found.top) == pytest.approx(1.0, rel=1e-9)


def test_values_are_the_log_softmax() -> None:
    found = token_logprobs(np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32)), 2, 2)
    assert found.token_id == 2
    assert found.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [token_id for token_id, _ in found.top] == [0, 1]
    assert [x for _, x in found.top] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)


@pytest.mark.parametrize("token_id", range(len(LOGITS)))
def test_the_chosen_value_is_the_same_float_as_in_the_top(token_id: int) -> None:
    found = token_logprobs(LOGITS, token_id, len(LOGITS))
    assert dict(found.top)[token_id] == found.logprob


@pytest.mark.parametrize(
    ("num_top", "expected"),
    [
        pytest.param(0, [], id="none"),
        pytest.param(1, [1], id="first-of-three-equal"),
        pytest.param(2, [1, 3], id="cut-inside-a-tie"),
        pytest.param(4, [1, 3, 6, 2], id="two-ties"),
        pytest.param(100, [1, 3, 6, 2, 5, 0, 4], id="more-than-the-vocabulary"),
    ],
)
def test_top_is_sorted_down_with_ties_by_token_id(num_top: int, expected: list[int]) -> None:
    found = token_logprobs(LOGITS, 4, num_top)
    assert [token_id for token_id, _ in found.top] == expected


def test_a_large_vocabulary_has_the_top_that_a_full_sort_has() -> None:
    logits = np.random.default_rng(1).integers(0, 50, size=2000).astype(np.float32)
    order = np.lexsort((np.arange(2000), -logits))
    found = token_logprobs(logits, 0, 200)
    assert [token_id for token_id, _ in found.top] == order[:200].tolist()


def test_huge_logits_do_not_overflow() -> None:
    found = token_logprobs(np.array([1e4, -1e4, 1e4], dtype=np.float32), 0, 1)
    assert found.logprob == pytest.approx(-math.log(2))
    assert token_logprobs(np.array([1e4, -1e4], dtype=np.float32), 1, 0).logprob == -2e4


def test_the_input_is_not_touched() -> None:
    logits = LOGITS.copy()
    token_logprobs(logits, 0, 3)
    assert np.array_equal(logits, LOGITS)


@pytest.mark.parametrize("token_id", range(len(LOGITS)))
def test_a_tokens_rank_is_its_place_among_all(token_id: int) -> None:
    found = token_logprobs(LOGITS, token_id, len(LOGITS))
    assert found.top[found.rank - 1][0] == token_id
