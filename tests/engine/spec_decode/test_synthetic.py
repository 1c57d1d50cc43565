"""Synthetic drafts: a prompt that comes again is drafted from its first answer, at the rates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scipy import stats

from engine.messages import AddRequest, SamplingParams
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest
from engine.spec_decode.synthetic import SyntheticProposer
from tests.engine.driver import add_request, run_one
from tests.engine.fake_backend import FakeBackend, build_core

PROMPT = [1, 2, 3]
ANSWER = [*range(10, 40)]


def make_request(
    output: Sequence[int] = (), *, prompt: Sequence[int] = PROMPT, salt: str = "", name: str = "r"
) -> Request:
    message = AddRequest(
        request_id=name,
        prompt_token_ids=list(prompt),
        output_token_ids=list(output),
        cache_salt=salt,
        sampling_params=SamplingParams(max_tokens=1000),
    )
    return Request.from_message(message, eos_token_ids=(), max_model_len=5000)


def make_proposer(*rates: float, max_cached_tokens: int = 100) -> SyntheticProposer:
    proposer = SyntheticProposer(rates, max_cached_tokens=max_cached_tokens)
    proposer.finish(make_request(ANSWER))
    return proposer


def propose(proposer: SyntheticProposer, request: Request) -> list[int] | None:
    proposal = proposer.propose([DraftRequest(request, 7)]).get(request.request_id)
    return None if proposal is None else list(proposal.token_ids)


@pytest.mark.parametrize(
    ("request_", "draft"),
    [
        pytest.param(make_request(), ANSWER[:3], id="start"),
        pytest.param(make_request(ANSWER[:5]), ANSWER[5:8], id="middle"),
        pytest.param(make_request(ANSWER[:29]), ANSWER[29:], id="end"),
        pytest.param(make_request(ANSWER), None, id="behind-the-end"),
        pytest.param(make_request([10, 99]), None, id="another-answer"),
        pytest.param(make_request(prompt=[1, 2]), None, id="another-prompt"),
        pytest.param(make_request(salt="a"), None, id="another-salt"),
    ],
)
def test_the_first_answer_is_replayed(request_, draft) -> None:
    assert propose(make_proposer(1.0, 1.0, 1.0), request_) == draft


def test_a_request_that_has_left_the_recorded_answer_is_not_drafted_for_again() -> None:
    proposer, request = make_proposer(1.0), make_request([10, 99])
    assert propose(proposer, request) is None
    request.token_ids[-1] = 11
    assert propose(proposer, request) is None


def test_the_oldest_answer_is_forgotten_for_room() -> None:
    proposer = make_proposer(1.0, max_cached_tokens=40)
    proposer.finish(make_request(ANSWER[:5], prompt=[4]))
    assert propose(proposer, make_request(name="a")) == [10]
    proposer.finish(make_request(ANSWER[:5], prompt=[5]))
    assert propose(proposer, make_request(name="b")) is None


def test_a_longer_answer_takes_the_place_of_a_shorter_one() -> None:
    proposer = make_proposer(1.0)
    proposer.finish(make_request([*ANSWER, 40]))
    proposer.finish(make_request(ANSWER[:3]))
    assert propose(proposer, make_request(ANSWER)) == [40]


def test_drafts_are_right_as_often_as_they_should_be() -> None:
    """Each share within 5 standard deviations: by chance out of 3 in 600,000 runs."""
    rates, num_drafts = (0.9, 0.5, 0.5, 0.1), 4000
    proposer = make_proposer(*rates)
    num_right = [0] * len(rates)
    for _ in range(num_drafts):
        draft = propose(proposer, make_request())
        assert draft is not None
        for position in range(len(rates)):
            num_right[position] += draft[: position + 1] == ANSWER[: position + 1]
    for rate, num in zip(rates, num_right, strict=True):
        deviation = stats.binom.std(num_drafts, rate)
        assert abs(num - rate * num_drafts) <= 5 * deviation
    assert num_right[1] == num_right[2]


def test_a_spoiled_token_is_another_token_of_the_vocabulary() -> None:
    proposer = SyntheticProposer([0.0], max_cached_tokens=100)
    proposer.finish(make_request([0, 31]))
    assert propose(proposer, make_request()) == [1]
    assert propose(proposer, make_request([0])) == [30]


def test_synthetic_drafts_do_not_change_the_text() -> None:
    proposer = SyntheticProposer([0.8, 0.6, 0.4], max_cached_tokens=1000)
    core = build_core(FakeBackend(), [proposer])
    first, again = (
        run_one(core, add_request(name, PROMPT, max_tokens=40, num_speculative_tokens=3))
        for name in ("first", "again")
    )
    assert first.token_ids == again.token_ids
    assert first.num_draft_tokens == 0
    assert 0 < again.num_accepted_tokens < again.num_draft_tokens
