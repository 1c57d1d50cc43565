"""What is left out of the vocabulary to be fast never changes a token, a kept set or a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from full_sampler import full_candidates, full_logprobs, full_sample
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import SamplingParams
from engine.sampling.candidates import filtered_candidates
from engine.sampling.logprobs import token_logprobs
from engine.sampling.noise import MAX_QUIET_NOISE, PositionNoise
from engine.sampling.sampler import sample
from engine.sampling.tempered_logits import MASS_ERROR, TemperedLogits
from engine.sampling.top_tokens import top_token_ids

VOCAB_SIZE = 49_152
RNG = np.random.default_rng(0)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **fields)


def like_a_model(scale: float) -> np.ndarray:
    """A head that stands out, and the many ties that bfloat16 makes."""
    logits = RNG.normal(scale=scale, size=VOCAB_SIZE)
    logits[RNG.integers(VOCAB_SIZE, size=20)] += 3 * scale
    return (np.round(logits * 16) / 16).astype(np.float32)


def forbidden_but_some(num_allowed: int) -> np.ndarray:
    logits = np.full(VOCAB_SIZE, -np.inf, dtype=np.float32)
    allowed = RNG.choice(VOCAB_SIZE, size=num_allowed, replace=False)
    logits[allowed] = RNG.normal(scale=3, size=num_allowed)
    return logits


def with_nan() -> np.ndarray:
    logits = like_a_model(3.1)
    logits[RNG.integers(VOCAB_SIZE, size=100)] = np.nan
    return logits


VOCABULARIES = {
    "like a model": like_a_model(3.1),
    "peaked": like_a_model(10),
    "nearly flat": like_a_model(0.1),
    "flat": np.zeros(VOCAB_SIZE, dtype=np.float32),
    "two levels": np.repeat(np.float32([0, -1]), VOCAB_SIZE // 2),
    "far from zero": like_a_model(3.1) + np.float32(1e6),
    "3 allowed": forbidden_but_some(3),
    "5000 allowed": forbidden_but_some(5000),
    "odd size": like_a_model(3.1)[: VOCAB_SIZE - 777],
}
FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 300},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"min_p": 0.05},
    {"min_p": 1e-9},
    {"top_k": 100, "top_p": 0.8, "min_p": 0.01},
    {"top_p": 0.95, "min_p": 0.02},
]


@pytest.mark.parametrize("temperature", [1e-4, 0.3, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("fields", FILTERS, ids=str)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_large_vocabulary_gives_the_token_that_a_full_computation_gives(
    name: str, fields: dict[str, Any], temperature: float
) -> None:
    logits = VOCABULARIES[name]
    for position in range(3):
        request = params(temperature=temperature, seed=position, **fields)
        assert sample(logits, request, position) == full_sample(logits, request, position)


# Few different values: ties at every threshold, also of the total probability.
LEVELS = st.sampled_from([-np.inf, -30.0, -2.0, -1.0, 0.0, 0.5, 1.0, 1e-20, 2e-20, 20.0])
VALUES = st.one_of(LEVELS, st.floats(-40, 40, width=32))


@given(
    values=st.lists(VALUES, min_size=1, max_size=40).filter(lambda v: max(v) > -np.inf),
    temperature=st.sampled_from([1e-5, 0.1, 0.5, 1.0, 1.5, 100.0]),
    top_k=st.integers(0, 41),
    top_p=st.sampled_from([1e-9, 0.25, 0.5, 0.75, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-30, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_any_logits_keep_the_tokens_and_give_the_token_of_a_full_computation(
    values, temperature, top_k, top_p, min_p, seed
) -> None:
    logits = np.array(values, dtype=np.float32)
    request = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    kept = filtered_candidates(TemperedLogits(logits, temperature), request)
    if kept is not None:
        token_ids, scores = full_candidates(logits, request)
        assert kept.token_ids.tolist() == token_ids.tolist()
        assert kept.scores.tolist() == scores.tolist()
    assert sample(logits, request, 5) == full_sample(logits, request, 5)


@pytest.mark.parametrize("nudge", [-1e-9, 1e-9])
@pytest.mark.parametrize("num_kept", [1, 2, 7, 40, 200, 1000])
def test_top_p_is_exact_where_a_token_more_or_less_is_a_matter_of_rounding(
    num_kept: int, nudge: float
) -> None:
    logits = RNG.normal(scale=3.1, size=VOCAB_SIZE).astype(np.float32)
    probs = np.sort(np.exp(logits.astype(np.float64) - logits.max()))[::-1]
    top_p = probs[:num_kept].sum() / probs.sum() * (1 + nudge)
    request = params(top_p=top_p)
    kept = filtered_candidates(TemperedLogits(logits, 1.0), request)
    assert kept is not None
    assert kept.token_ids.tolist() == full_candidates(logits, request)[0].tolist()


@given(
    values=st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=50),
    temperature=st.floats(1e-5, 10),
)
def test_every_token_may_reach_its_own_score(values: list[float], temperature: float) -> None:
    tempered = TemperedLogits(np.array(values, dtype=np.float32), temperature)
    for token_id, score in enumerate(tempered.scores(np.arange(len(values))).tolist()):
        assert tempered.may_reach(score)[token_id]


@given(
    num_tokens=st.integers(1, 9000),
    num_levels=st.sampled_from([1, 2, 20, 10**6]),
    scale=st.sampled_from([0.01, 1.0, 5.0, 30.0]),
    temperature=st.sampled_from([0.2, 1.0, 2.0]),
    seed=st.integers(0, 2**63 - 1),
)
def test_noise_for_few_tokens_finds_the_winner_among_all(
    num_tokens, num_levels, scale, temperature, seed
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.integers(num_levels, size=num_tokens) / num_levels).astype(np.float32)
    logits *= np.float32(scale)
    request = params(temperature=temperature, seed=seed)
    for position in range(20):
        assert sample(logits, request, position) == full_sample(logits, request, position)


@pytest.mark.parametrize("position", range(50))
def test_quiet_tokens_have_no_more_noise_than_they_may(position: int) -> None:
    noise = PositionNoise(seed=1, choice_index=0, position=position)
    values = noise.of(np.arange(VOCAB_SIZE))
    loud = noise.loud(VOCAB_SIZE)
    assert values[~loud].max() < MAX_QUIET_NOISE < values[loud].min() + 0.01


def test_the_first_of_two_equal_totals_wins() -> None:
    """The scores make up for the noise, up to the last bit."""
    noise = PositionNoise(seed=4, choice_index=0, position=2).of(np.arange(2))
    logits = np.float32([noise[1] - noise[0], 0.0])
    request = params(seed=4)
    assert sample(logits, request, 2) == full_sample(logits, request, 2)


def test_what_is_no_number_is_never_sampled() -> None:
    logits = with_nan()
    clean = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    for position in range(20):
        assert sample(logits, params(), position) == full_sample(clean, params(), position)


def test_logits_without_a_possible_token_are_an_error() -> None:
    for value in (-np.inf, np.nan):
        with pytest.raises(ValueError, match="no token"):
            sample(np.full(9, value, dtype=np.float32), params(), 0)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("temperature", [1e-4, 0.7, 2.0])
def test_the_approximate_mass_is_within_half_of_its_error(name: str, temperature: float) -> None:
    logits = VOCABULARIES[name]
    tempered = TemperedLogits(logits, temperature)
    exact = np.exp(tempered.scores(np.arange(logits.shape[0]))).sum()
    assert abs(tempered.approximate_mass() / exact - 1) < MASS_ERROR / 2


@pytest.mark.parametrize("num_top", [1, 2, 5, 20, 192, 193, 385, 1000, VOCAB_SIZE])
@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name != "odd size"])
def test_top_tokens_are_those_of_a_full_sort(name: str, num_top: int) -> None:
    logits = VOCABULARIES[name]
    expected = np.flatnonzero(logits >= np.sort(logits)[-num_top])
    assert top_token_ids(logits, num_top).tolist() == expected.tolist()


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_logprobs_are_the_floats_of_a_full_log_softmax(name: str, num_top: int) -> None:
    logits = VOCABULARIES[name]
    for token_id in (int(logits.argmax()), int(np.argsort(logits)[-4]), 17):
        expected = full_logprobs(logits, token_id, num_top)
        assert token_logprobs(logits, token_id, num_top) == expected
