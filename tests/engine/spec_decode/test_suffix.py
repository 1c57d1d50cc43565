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
    return proposer.propose([DraftRequest(request, max_tokens)]).get(request.request_id)


@pytest.mark.parametrize(
    ("prompt", "output", "max_tokens", "draft"),
    [
        # Nothing repeats.
        pytest.param([1, 2, 3, 4], [5], 15, None, id="no-match"),
        # One token is less than prompt_lookup_min.
        pytest.param([1, 2, 3], [1], 15, None, id="match-too-short"),
        # 1 2 came before; a match of two is trusted for two tokens.
        pytest.param([1, 2, 3, 4, 5, 6], [1, 2], 15, (3, 4), id="from-the-prompt"),
        # A match of three is trusted for three.
        pytest.param([1, 2, 3, 4, 5, 6, 7], [1, 2, 3], 15, (4, 5, 6), id="longer-match"),
        # No more than is wanted.
        pytest.param([1, 2, 3, 4, 5, 6, 7], [1, 2, 3], 1, (4,), id="cut-to-max-tokens"),
        # The match may be in the output.
        pytest.param([7], [1, 2, 3, 4, 1, 2], 15, (3, 4), id="from-the-output"),
        # Of two matches of the same length the later is taken.
        pytest.param([1, 2, 3, 3, 1, 2, 4, 4], [1, 2], 15, (4, 4), id="latest-wins"),
        # A period of one goes on as a period of one.
        pytest.param([7], [1, 1, 1, 1], 15, (1, 1, 1), id="period-one"),
        # A period of two, of which the index knows only one: 1 2 | 1 2 | 1 2 1 2 ...
        pytest.param([1, 2, 1, 2, 1, 2], [1, 2], 15, (1, 2, 1, 2, 1, 2), id="period-two"),
        # The continuation 3 1 2 ends with the text and is repeated only as far as trusted.
        pytest.param([1, 2, 3], [1, 2], 15, (3, 1), id="trusted-length-only"),
        # A single token cannot match.
        pytest.param([1], [], 15, None, id="one-token"),
    ],
)
def test_drafts_are_what_followed_the_longest_match(
    prompt: list[int], output: list[int], max_tokens: int, draft: tuple[int, ...] | None
) -> None:
    assert propose(make_proposer(), make_request(prompt, output), max_tokens=max_tokens) == draft


def test_a_match_below_prompt_lookup_min_is_no_match() -> None:
    request = make_request([1, 2, 3, 4], [1, 2])
    assert propose(make_proposer(prompt_lookup_min=2), request) == (3, 4)
    assert propose(make_proposer(prompt_lookup_min=3), request) is None


def test_a_match_is_trusted_for_prompt_lookup_max_tokens_at_most() -> None:
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4])
    assert propose(make_proposer(prompt_lookup_max=3), request) == (5, 6, 7)


def test_a_running_request_drafts_from_another_running_one() -> None:
    proposer = make_proposer()
    propose(proposer, make_request([5, 6], [7, 8, 9], request_id="other"))
    assert propose(proposer, make_request([1, 6], [7], request_id="new")) == (8, 9)


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
    assert propose(proposer, request) == (3, 4)


@pytest.mark.parametrize(
    ("max_cached_tokens", "draft"),
    [pytest.param(9, (3, 4), id="room"), pytest.param(8, None, id="one-token-too-many")],
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
        DraftRequest(make_request([7, 8, 9, 9, 7, 8], request_id="c"), 5),
    ]
    assert make_proposer().propose(wanted) == {"a": (3,), "c": (9, 9)}
