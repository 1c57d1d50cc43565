"""Drafts from the client's own guess of the output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import AddRequest, SamplingParams
from engine.request import Request
from engine.spec_decode.prediction import PredictionCursor, PredictionProposer
from engine.spec_decode.proposer import DraftRequest

PREDICTION = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("output", "place"),
    [
        pytest.param([], 0, id="start"),
        pytest.param([1, 2], 2, id="follows"),
        pytest.param(PREDICTION, 8, id="end"),
        pytest.param([*PREDICTION, 9], None, id="behind-the-end"),
        pytest.param([1, 2, 9], None, id="left"),
        pytest.param([1, 2, 9, 4, 5], None, id="two-tokens-are-no-proof"),
        pytest.param([1, 2, 9, 4, 5, 6], 6, id="found-again"),
        pytest.param([9, 1, 2, 3, 4], 4, id="a-token-before"),
        pytest.param([5, 6, 7], 7, id="begins-in-the-middle"),
        pytest.param([1, 2, 3, 4, 2, 3, 4], 4, id="goes-back"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_place_behind_the_output(output: list[int], place: int | None, at_once: bool) -> None:
    cursor = PredictionCursor(PREDICTION)
    if not at_once:
        for num_tokens in range(len(output)):
            cursor.follow(output[:num_tokens])
    assert cursor.follow(output) == place


def test_of_several_places_the_next_one_is_taken() -> None:
    prediction = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 6]
    cursor = PredictionCursor(prediction)
    assert cursor.follow([1, 2, 3, 4, 8]) is None
    assert cursor.follow([1, 2, 3, 4, 8, 1, 2, 3]) == 8


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_a_place_always_stands_behind_the_latest_tokens(prediction, output) -> None:
    cursor = PredictionCursor(prediction)
    for num_tokens in range(1, len(output) + 1):
        place = cursor.follow(output[:num_tokens])
        if place is not None:
            num_compared = min(3, num_tokens)
            assert prediction[place - num_compared : place] == output[:num_tokens][-num_compared:]


def request(prediction: list[int], output: list[int]) -> Request:
    message = AddRequest(
        request_id="r",
        prompt_token_ids=[7, 7],
        output_token_ids=output,
        prediction_token_ids=prediction,
        sampling_params=SamplingParams(max_tokens=100),
    )
    return Request.from_message(message, eos_token_ids=(), max_model_len=1000)


@pytest.mark.parametrize(
    ("prediction", "output", "max_tokens", "draft"),
    [
        (PREDICTION, [], 3, (1, 2, 3)),
        (PREDICTION, [1], 9, (2, 3, 4, 5, 6, 7, 8)),
        (PREDICTION, [3], 9, None),
        (PREDICTION, PREDICTION, 9, None),
        ([], [], 9, None),
    ],
)
def test_what_follows_the_place_is_drafted(prediction, output, max_tokens, draft) -> None:
    wanted = DraftRequest(request(prediction, output), max_tokens)
    proposal = PredictionProposer().propose([wanted]).get("r")
    assert (None if proposal is None else proposal.token_ids) == draft


def test_a_draft_is_trusted_more_the_longer_the_output_has_followed() -> None:
    def confidences(output: list[int]) -> tuple[float, ...]:
        return (
            PredictionProposer()
            .propose([DraftRequest(request(PREDICTION, output), 2)])["r"]
            .confidences
        )

    start, later = confidences([]), confidences([1, 2, 3, 4, 5])
    found_again = confidences([1, 2, 3, 4, 5, 9, 4, 5, 6])
    assert start[0] < start[1] < found_again[0] < later[0] < later[1] < 1


def test_a_request_id_that_comes_again_starts_at_the_beginning() -> None:
    proposer = PredictionProposer()
    first = request(PREDICTION, [1, 2, 3])
    assert proposer.propose([DraftRequest(first, 2)])["r"].token_ids == (4, 5)
    proposer.finish(first)
    assert proposer.propose([DraftRequest(request([4, 5], []), 2)])["r"].token_ids == (4, 5)
