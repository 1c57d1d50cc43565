"""The sampler against greedy choice, hand-computed filters and the exact distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from engine.messages import SamplingParams
from engine.sampling.sampler import sample

FALSE_ALARM = 1e-6
NUM_DRAWS = 20_000
PROBS = [0.30, 0.25, 0.15, 0.12, 0.08, 0.05, 0.03, 0.02]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **fields)


def logits_of(probs: list[float]) -> np.ndarray:
    return np.log(np.array(probs, dtype=np.float32)) + np.float32(3.0)


def sampled_set(probs: list[float], **fields: Any) -> set[int]:
    """The tokens that ever come: one of probability 0.04 is missed with probability 1e-53."""
    logits = logits_of(probs)
    return {sample(logits, params(**fields), position) for position in range(3000)}


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 9e-6])
def test_a_temperature_below_the_threshold_is_greedy(temperature: float) -> None:
    rng = np.random.default_rng(0)
    for position in range(50):
        logits = rng.normal(size=100).astype(np.float32)
        assert sample(logits, params(temperature=temperature), position) == logits.argmax()


@pytest.mark.parametrize("temperature", [0.0, 1e-8])
def test_greedy_takes_the_first_of_equal_logits(temperature: float) -> None:
    logits = np.array([1, 5, 2, 5, 5], dtype=np.float32)
    tokens = {sample(logits, params(temperature=temperature, seed=s), s) for s in range(50)}
    assert tokens == {1}


def test_a_very_low_temperature_that_is_not_greedy_takes_the_largest_logit() -> None:
    logits = logits_of(PROBS)
    tokens = {sample(logits, params(temperature=2e-5, seed=s), 4) for s in range(200)}
    assert tokens == {0}


def test_the_same_key_gives_the_same_token_and_leaves_the_logits_alone() -> None:
    logits = logits_of(PROBS)
    tokens = {sample(logits, params(seed=3, top_k=5, top_p=0.9), 17) for _ in range(20)}
    assert len(tokens) == 1
    assert np.array_equal(logits, logits_of(PROBS))


def test_choices_of_one_request_differ() -> None:
    logits = logits_of(PROBS)
    choices = [
        [sample(logits, params(seed=3, choice_index=choice), p) for p in range(30)]
        for choice in range(2)
    ]
    assert choices[0] != choices[1]


# Token 1 and token 2 are tied.
TIED = [0.4, 0.2, 0.2, 0.1, 0.06, 0.04]


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [
        pytest.param(0, {0, 1, 2, 3, 4, 5}, id="off"),
        pytest.param(1, {0}, id="1"),
        pytest.param(2, {0, 1, 2}, id="2-keeps-the-tie"),
        pytest.param(3, {0, 1, 2}, id="3"),
        pytest.param(4, {0, 1, 2, 3}, id="4"),
        pytest.param(6, {0, 1, 2, 3, 4, 5}, id="vocabulary"),
        pytest.param(1000, {0, 1, 2, 3, 4, 5}, id="more-than-the-vocabulary"),
    ],
)
def test_top_k_keeps_the_k_largest_and_their_ties(top_k: int, kept: set[int]) -> None:
    assert sampled_set(TIED, top_k=top_k) == kept


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        pytest.param(0.001, {0}, id="tiny"),
        pytest.param(0.39, {0}, id="first-is-enough"),
        pytest.param(0.41, {0, 1, 2}, id="second-is-needed-with-its-tie"),
        pytest.param(0.79, {0, 1, 2}, id="three"),
        pytest.param(0.81, {0, 1, 2, 3}, id="four"),
        pytest.param(0.97, {0, 1, 2, 3, 4, 5}, id="last-is-needed"),
        pytest.param(1.0, {0, 1, 2, 3, 4, 5}, id="off"),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass(top_p: float, kept: set[int]) -> None:
    assert sampled_set(TIED, top_p=top_p) == kept


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [
        pytest.param(0.0, {0, 1, 2, 3, 4, 5}, id="off"),
        pytest.param(0.09, {0, 1, 2, 3, 4, 5}, id="below-all"),
        pytest.param(0.11, {0, 1, 2, 3, 4}, id="0.04-is-a-tenth-of-0.4"),
        pytest.param(0.49, {0, 1, 2}, id="below-a-half"),
        pytest.param(0.51, {0}, id="above-a-half"),
        pytest.param(1.0, {0}, id="only-the-largest"),
    ],
)
def test_min_p_is_relative_to_the_most_likely_token(min_p: float, kept: set[int]) -> None:
    assert sampled_set(TIED, min_p=min_p) == kept


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        # 0.85 of the 0.9 that top_k leaves is 0.765, which three tokens reach.
        pytest.param({"top_k": 4, "top_p": 0.85}, {0, 1, 2}, id="top_p-of-what-top_k-leaves"),
        # Halving the temperature squares: 0.16 of 0.2552 is 0.63.
        pytest.param({"temperature": 0.5, "top_p": 0.6}, {0}, id="top_p-after-temperature"),
        # Doubling it takes roots: sqrt(0.2 / 0.4) is 0.71, sqrt(0.1 / 0.4) is 0.5.
        pytest.param({"temperature": 2.0, "min_p": 0.6}, {0, 1, 2}, id="min_p-after-temperature"),
        pytest.param({"top_k": 5, "top_p": 0.97, "min_p": 0.2}, {0, 1, 2, 3}, id="all-three"),
    ],
)
def test_filters_combine(fields: dict[str, Any], kept: set[int]) -> None:
    assert sampled_set(TIED, **fields) == kept


@pytest.mark.parametrize(
    ("top_p", "is_upper_half_enough"),
    # The upper half weighs e^0.1 / (1 + e^0.1) = 0.525.
    [pytest.param(0.51, True, id="upper-half"), pytest.param(0.54, False, id="all")],
)
def test_top_p_is_exact_over_a_flat_vocabulary(top_p: float, is_upper_half_enough: bool) -> None:
    logits = np.array([0.1] * 1500 + [0.0] * 1500, dtype=np.float32)
    tokens = [sample(logits, params(top_p=top_p), position) for position in range(300)]
    assert (max(tokens) < 1500) == is_upper_half_enough
    assert len(set(tokens)) > 200


def test_a_forbidden_token_never_comes() -> None:
    logits = logits_of(PROBS)
    logits[0] = -np.inf
    assert {sample(logits, params(temperature=1.5), p) for p in range(3000)} == set(range(1, 8))


def by_position(logits: np.ndarray, **fields: Any) -> list[int]:
    return [sample(logits, params(seed=11, **fields), p) for p in range(NUM_DRAWS)]


def by_seed(logits: np.ndarray, **fields: Any) -> list[int]:
    return [sample(logits, params(seed=s, **fields), 23) for s in range(NUM_DRAWS)]


@pytest.mark.parametrize("draw", [by_position, by_seed])
@pytest.mark.parametrize(
    ("fields", "num_kept"),
    [
        pytest.param({"temperature": 0.7}, 8, id="0.7"),
        pytest.param({"temperature": 1.0}, 8, id="1.0"),
        pytest.param({"temperature": 1.5}, 8, id="1.5"),
        # top_k leaves six; the mass of the first four is 0.913 of theirs at 0.7, and 0.863 at 1.0.
        # At 1.5 the sixth is (0.05 / 0.3)^(1 / 1.5) = 0.303 as likely as the first.
        pytest.param({"temperature": 0.7, "top_k": 6, "top_p": 0.9}, 4, id="0.7-top_k-top_p"),
        pytest.param({"temperature": 1.0, "top_k": 6, "top_p": 0.9}, 5, id="1.0-top_k-top_p"),
        pytest.param({"temperature": 1.5, "top_k": 6, "min_p": 0.35}, 5, id="1.5-top_k-min_p"),
    ],
)
def test_draws_have_exactly_the_distribution(draw, fields: dict[str, Any], num_kept: int) -> None:
    expected = np.array(PROBS[:num_kept]) ** (1 / fields["temperature"])
    expected *= NUM_DRAWS / expected.sum()
    counts = np.bincount(draw(logits_of(PROBS), **fields), minlength=8)
    assert counts[num_kept:].sum() == 0
    statistic = ((counts[:num_kept] - expected) ** 2 / expected).sum()
    # Chi-square; at a false alarm probability of 1e-6 the bound for 8 tokens is 40.5.
    assert statistic < stats.chi2.isf(FALSE_ALARM, num_kept - 1)
