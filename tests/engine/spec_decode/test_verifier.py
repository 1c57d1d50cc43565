"""Sample-and-match: the acceptance table, equality with single steps, and the distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from engine.messages import AddRequest, SamplingParams
from engine.request import Request
from engine.sampling.logprobs import token_logprobs
from engine.spec_decode.verifier import VerifiedTokens, sample_next, verify

EOS = 9
VOCAB_SIZE = 10
PROMPT = [1, 2, 3]


def make_request(
    output: Sequence[int] = (), *, max_model_len: int = 1000, **fields: Any
) -> Request:
    params = SamplingParams(**{"max_tokens": 100, "temperature": 0.0, **fields})
    message = AddRequest(
        request_id="r",
        prompt_token_ids=PROMPT,
        output_token_ids=list(output),
        sampling_params=params,
    )
    return Request.from_message(message, eos_token_ids=(EOS,), max_model_len=max_model_len)


def rows(path: Sequence[int]) -> np.ndarray:
    """Logits whose largest entries are `path`, and whose second largest is the token after."""
    logits = np.zeros((len(path), VOCAB_SIZE), dtype=np.float32)
    for position, token_id in enumerate(path):
        logits[position, token_id] = 5.0
        logits[position, (token_id + 1) % VOCAB_SIZE] = 4.0
    return logits


def summary(verified: VerifiedTokens) -> tuple[list[int], int, str | None]:
    return verified.token_ids, verified.num_accepted_tokens, verified.finish_reason


@pytest.mark.parametrize(
    ("draft", "path", "fields", "expected"),
    [
        pytest.param([], [4], {}, ([4], 0, None), id="empty-draft"),
        pytest.param([4, 5], [4, 5, 6], {}, ([4, 5, 6], 2, None), id="all-accepted-and-bonus"),
        pytest.param([4, 5], [0, 5, 6], {}, ([0], 0, None), id="first-rejected"),
        pytest.param([4, 5, 6], [4, 0, 6, 7], {}, ([4, 0], 1, None), id="middle-rejected"),
        pytest.param([4, 5], [4, 0, 6], {}, ([4, 0], 1, None), id="last-rejected"),
        # A mismatch is final, though the draft is right again behind it.
        pytest.param([4, 5, 6], [0, 5, 6, 7], {}, ([0], 0, None), id="right-behind-a-mismatch"),
        pytest.param([4, EOS, 5], [4, EOS, 5, 6], {}, ([4, EOS], 2, "stop"), id="eos-in-draft"),
        pytest.param([4, 5], [4, EOS, 6], {}, ([4, EOS], 1, "stop"), id="eos-recovered"),
        pytest.param([4], [4, EOS], {}, ([4, EOS], 1, "stop"), id="eos-as-bonus"),
        pytest.param([EOS, 5], [4, 5, 6], {}, ([4], 0, None), id="drafted-eos-rejected"),
        pytest.param(
            [4, EOS, 5],
            [4, EOS, 5, 6],
            {"ignore_eos": True},
            ([4, EOS, 5, 6], 3, None),
            id="ignored-eos",
        ),
        pytest.param(
            [4, 5, 6],
            [4, 5, 6, 7],
            {"stop_token_ids": [5]},
            ([4, 5], 2, "stop"),
            id="stop-token-in-draft",
        ),
        pytest.param(
            [4, 5],
            [4, 5, 6],
            {"stop_token_ids": [5], "ignore_eos": True},
            ([4, 5], 2, "stop"),
            id="ignore-eos-leaves-stop-tokens",
        ),
        pytest.param(
            [4, 5, 6], [4, 5, 6, 7], {"max_tokens": 2}, ([4, 5], 2, "length"), id="max-tokens"
        ),
        pytest.param(
            [4, 5], [4, 5, 6], {"max_tokens": 3}, ([4, 5, 6], 2, "length"), id="bonus-is-the-last"
        ),
        pytest.param(
            [4, EOS], [4, EOS, 5], {"max_tokens": 2}, ([4, EOS], 2, "stop"), id="stop-beats-length"
        ),
        pytest.param(
            [4, 5, 6], [4, 5, 6, 7], {"max_model_len": 5}, ([4, 5], 2, "length"), id="context-full"
        ),
        pytest.param([4], [4, 5], {"max_tokens": 0}, ([], 0, "length"), id="nothing-wanted"),
        # EOS may not be among the first two; the second largest logit (0) comes in its place.
        pytest.param(
            [EOS, EOS, EOS],
            [EOS, EOS, EOS, EOS],
            {"min_tokens": 2},
            ([0], 0, None),
            id="min-tokens-rejects-eos",
        ),
        pytest.param(
            [0, 0, EOS, 4],
            [EOS, EOS, EOS, 4, 5],
            {"min_tokens": 2},
            ([0, 0, EOS], 3, "stop"),
            id="min-tokens-reached-inside-the-draft",
        ),
        pytest.param(
            [5, 6],
            [4, 6, 7],
            {"min_tokens": 1, "stop_token_ids": [4]},
            ([5, 6, 7], 2, None),
            id="min-tokens-forbids-stop-tokens",
        ),
    ],
)
def test_acceptance_table(
    draft: list[int], path: list[int], fields: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    request = make_request(**fields)
    verified = verify(request, draft, rows(path))
    assert summary(verified) == expected
    assert request.token_ids == [*PROMPT, *expected[0]]
    assert request.history.num_output_tokens == len(expected[0])


def test_tokens_already_emitted_count_for_the_limits() -> None:
    request = make_request([4, 5, 6], max_tokens=5, min_tokens=4)
    verified = verify(request, [0, EOS, 3], rows([EOS, EOS, 3, 4]))
    assert summary(verified) == ([0, EOS], 2, "stop")


def test_logprobs_are_those_of_each_position_before_processing() -> None:
    logits = rows([4, 5, 6])
    request = make_request(num_logprobs=2, logit_bias={5: 50.0})
    verified = verify(request, [5, 5], logits)
    assert verified.token_ids == [5, 5, 5]
    assert verified.logprobs == [token_logprobs(row, 5, 2) for row in logits]


@pytest.mark.parametrize(("num_logprobs", "expected"), [(None, []), (0, [[], []])])
def test_logprobs_cover_the_emitted_tokens_only(num_logprobs: int | None, expected) -> None:
    verified = verify(make_request(num_logprobs=num_logprobs), [4, 5], rows([4, 6, 7]))
    assert [entry.top for entry in verified.logprobs] == expected


STRONG_PENALTIES = {
    "repetition_penalty": 1.5,
    "frequency_penalty": 1.0,
    "presence_penalty": 0.5,
    "min_tokens": 4,
    "logit_bias": {EOS: 2.0},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_penalties_apply_position_by_position_as_in_single_steps(
    temperature: float, seed: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=(12, VOCAB_SIZE)).astype(np.float32)
    fields = {**STRONG_PENALTIES, "temperature": temperature, "seed": seed, "num_logprobs": 3}
    stepwise, reasons, logprobs = make_request(**fields), [], []
    for row in logits:
        single = verify(stepwise, (), row[None])
        reasons.append(single.finish_reason)
        logprobs += single.logprobs
        if single.finish_reason:
            break
    path = stepwise.token_ids[len(PROMPT) :]
    at_once = make_request(**fields)
    verified = verify(at_once, [*path, *[0] * 12][:11], logits)
    assert verified.token_ids == path
    assert verified.logprobs == logprobs
    assert verified.finish_reason == reasons[-1]


def test_strong_penalties_change_the_text() -> None:
    logits = np.tile(np.random.default_rng(0).normal(size=VOCAB_SIZE), (5, 1)).astype(np.float32)
    favourite = int(logits[0].argmax())
    verified = verify(make_request(**STRONG_PENALTIES), [favourite] * 4, logits)
    assert len(verified.token_ids) < 5


# A Markov chain of 8 tokens: the target's distribution of a token given the one before.
NUM_VERIFICATIONS = 20_000
_CHAIN_RNG = np.random.default_rng(5)
CHAIN = _CHAIN_RNG.dirichlet([2.0] * 8, size=8) * 0.6 + 0.05
CHAIN_LOGITS = np.log(CHAIN).astype(np.float32)

DraftFor = Callable[[Request, np.random.Generator], list[int]]


def right_draft(request: Request, _rng: np.random.Generator) -> list[int]:
    return [sample_next(request, CHAIN_LOGITS[request.token_ids[-1]])]


def wrong_draft(request: Request, rng: np.random.Generator) -> list[int]:
    return [(right_draft(request, rng)[0] + 1 + int(rng.integers(7))) % 8]


def random_draft(_request: Request, rng: np.random.Generator) -> list[int]:
    return [int(rng.integers(8))]


def no_draft(_request: Request, _rng: np.random.Generator) -> list[int]:
    return []


def constant_draft(_request: Request, _rng: np.random.Generator) -> list[int]:
    return [0]


def first_two_tokens(seed: int, draft_for: DraftFor, rng: np.random.Generator) -> tuple[int, int]:
    request = make_request(temperature=1.0, seed=seed, ignore_eos=True)
    while request.num_output_tokens < 2:
        draft = draft_for(request, rng)
        verify(request, draft, CHAIN_LOGITS[[request.token_ids[-1], *draft]])
    first, second = request.token_ids[len(PROMPT) : len(PROMPT) + 2]
    return first, second


@pytest.mark.parametrize("draft_for", [right_draft, wrong_draft, random_draft])
def test_emitted_tokens_have_the_distribution_of_the_target(draft_for: DraftFor) -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((8, 8))
    for seed in range(NUM_VERIFICATIONS):
        counts[first_two_tokens(seed, draft_for, rng)] += 1
    first_counts = counts.sum(axis=1)
    expected_first = CHAIN[PROMPT[-1]] * NUM_VERIFICATIONS
    expected_second = CHAIN * first_counts[:, None]
    first = ((first_counts - expected_first) ** 2 / expected_first).sum()
    second = ((counts - expected_second) ** 2 / expected_second).sum()
    # Chi-square with 7 degrees of freedom, and with 7 for each first token: the bounds 40.5 and
    # 120.1 are exceeded with probability 1e-6.
    assert first < stats.chi2.isf(1e-6, 7)
    assert second < stats.chi2.isf(1e-6, 8 * 7)


@pytest.mark.parametrize("draft_for", [right_draft, wrong_draft, random_draft, constant_draft])
def test_the_same_seed_gives_the_same_tokens_whatever_is_drafted(draft_for: DraftFor) -> None:
    rng = np.random.default_rng(0)
    for seed in range(300):
        assert first_two_tokens(seed, draft_for, rng) == first_two_tokens(seed, no_draft, rng)
