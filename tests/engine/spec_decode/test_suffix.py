"""The suffix proposer: requests in, drafts out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.config import SpeculativeConfig
from engine.messages import AddRequest, SamplingParams
from engine.request import Request
from engine.spec_decode.proposer import DraftRequest
from engine.spec_decode.suffix import SuffixProposer


def make_proposer(**fields: int) -> SuffixProposer:
    return SuffixProposer(SpeculativeConfig(**fields))


def make_request(
    prompt: Sequence[int], output: Sequence[int] = (), *, request_id: str = "r"
) -> Request:
    message = AddRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        output_token_ids=list(output),
        sampling_params=SamplingParams(max_tokens=100),
    )
    return Request.from_message(message, eos_token_ids=(99,), max_model_len=1000)


def propose(
    proposer: SuffixProposer, request: Request, *, max_tokens: int = 15
) -> tuple[int, ...] | None:
    proposal = proposer.propose([DraftRequest(request, max_tokens)]).get(request.request_id)
    return None if proposal is None else proposal.token_ids


@pytest.mark.parametrize(
    ("prompt", "output", "max_tokens", "draft"),
    [
        pytest.param([1, 2, 3, 4], [5], 15, None, id="nothing-repeats"),
        # 1 came before, and 2 3 1 followed; that goes on as it is drafted.
        pytest.param([1, 2, 3], [1], 5, (2, 3, 1, 2, 3), id="from-the-prompt"),
        pytest.param([1, 2, 3], [1], 1, (2,), id="cut-to-max-tokens"),
        pytest.param([7], [1, 2, 3, 4, 1, 2], 2, (3, 4), id="from-the-output"),
        # 1 2 3 is longer than the later 2 3.
        pytest.param([1, 2, 3, 4, 8, 2, 3, 5], [1, 2, 3], 1, (4,), id="longer-beats-later"),
        # 2 was followed by 5 twice, by 4 once.
        pytest.param([2, 5, 3, 2, 5, 6, 2, 4, 8], [2], 1, (5,), id="more-often-beats-later"),
        pytest.param([7], [1, 1, 1, 1], 4, (1, 1, 1, 1), id="period-one"),
        pytest.param([1, 2, 1, 2, 1, 2], [1, 2], 5, (1, 2, 1, 2, 1), id="period-two"),
        pytest.param([1], [], 15, None, id="one-token"),
    ],
)
def test_drafts_are_what_most_likely_follows(
    prompt: list[int], output: list[int], max_tokens: int, draft: tuple[int, ...] | None
) -> None:
    assert propose(make_proposer(), make_request(prompt, output), max_tokens=max_tokens) == draft


def test_a_match_below_prompt_lookup_min_is_no_match() -> None:
    request = make_request([1, 2, 3, 4], [1, 2])
    assert propose(make_proposer(prompt_lookup_min=2), request, max_tokens=2) == (3, 4)
    assert propose(make_proposer(prompt_lookup_min=3), request, max_tokens=2) is None


def test_a_match_is_trusted_no_more_for_being_longer_than_prompt_lookup_max() -> None:
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4])
    long, short = (
        make_proposer(prompt_lookup_max=limit).propose([DraftRequest(request, 5)])["r"]
        for limit in (16, 3)
    )
    assert long.token_ids == short.token_ids == (5, 6, 7, 8, 9)
    assert len(set(short.confidences)) == 1
    assert short.confidences[0] < long.confidences[0] < long.confidences[-1]


def test_a_long_prompt_is_read_over_several_steps() -> None:
    """Drafts come from what is read so far."""
    proposer = make_proposer()
    prompt = [*range(5000), 2100, 2101]
    request = make_request(prompt)
    assert propose(proposer, request, max_tokens=1) is None
    assert propose(proposer, request, max_tokens=1) == (2102,)


def test_one_step_reads_no_more_for_several_requests_than_for_one() -> None:
    proposer = make_proposer()
    requests = [
        make_request([start + i for i in (*range(1500), 1400, 1401)], request_id=str(start))
        for start in (0, 10_000)
    ]
    wanted = [DraftRequest(request, 1) for request in requests]
    assert set(proposer.propose(wanted)) == {"0"}
    assert set(proposer.propose(wanted)) == {"0", "10000"}


def test_a_running_request_drafts_from_another_running_one() -> None:
    proposer = make_proposer()
    propose(proposer, make_request([5, 6], [7, 8, 9], request_id="other"))
    assert propose(proposer, make_request([1, 6], [7], request_id="new")) == (8, 9)


def test_a_request_of_another_cache_salt_is_not_drafted_from() -> None:
    proposer = make_proposer()
    secret = make_request([5, 6], [7, 8, 9], request_id="secret")
    secret.cache_salt = "salt"
    propose(proposer, secret)
    assert propose(proposer, make_request([1, 6], [7], request_id="new")) is None


def test_a_finished_request_is_drafted_from_with_all_of_its_output() -> None:
    proposer = make_proposer()
    proposer.finish(make_request([5, 6], [7, 8, 9, 10], request_id="finished"))
    assert propose(proposer, make_request([8, 9], request_id="new")) is not None


def test_tokens_appended_since_the_last_draft_are_seen() -> None:
    proposer = make_proposer()
    request = make_request([1, 2, 3, 4])
    assert propose(proposer, request) is None
    for token_id in (1, 2):
        request.append(token_id)
    assert propose(proposer, request, max_tokens=2) == (3, 4)


@pytest.mark.parametrize(
    ("max_cached_tokens", "draft"),
    [pytest.param(9, (3, 4), id="room"), pytest.param(7, None, id="no-room")],
)
def test_the_oldest_finished_request_is_forgotten_when_room_is_needed(
    max_cached_tokens: int, draft: tuple[int, ...] | None
) -> None:
    proposer = make_proposer(max_cached_tokens=max_cached_tokens)
    proposer.finish(make_request([1, 2, 3, 4], request_id="oldest"))
    proposer.finish(make_request([5, 6, 7], request_id="recent"))
    assert propose(proposer, make_request([1, 2], request_id="new")) == draft


def test_each_request_of_a_batch_gets_its_own_draft_or_none() -> None:
    wanted = [
        DraftRequest(make_request([1, 2, 3, 1, 2], request_id="a"), 1),
        DraftRequest(make_request([4, 5, 6], request_id="b"), 5),
        DraftRequest(make_request([7, 8, 9, 9, 7, 8], request_id="c"), 2),
    ]
    drafts = {name: p.token_ids for name, p in make_proposer().propose(wanted).items()}
    assert drafts == {"a": (3,), "c": (9, 9)}
