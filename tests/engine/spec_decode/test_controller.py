"""The draft-length controller, fed with step costs and acceptances as the engine would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from engine.messages import AddRequest, DraftKind, SamplingParams
from engine.request import Request
from engine.spec_decode.controller import MODEL_CONFIDENCE, DraftLengthController
from engine.spec_decode.proposer import Proposal

MAX_LENGTH = 8
RIGHT, WRONG = 1, 0


def make_request(
    *, num_speculative_tokens: int | None = None, max_tokens: int = 1000, request_id: str = "r"
) -> Request:
    message = AddRequest(
        request_id=request_id,
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(max_tokens=max_tokens),
        num_speculative_tokens=num_speculative_tokens,
    )
    return Request.from_message(message, eos_token_ids=(), max_model_len=2000)


def nearly_flat(num_tokens: int) -> float:
    """Bound by reading the weights: a token more costs about 5 %."""
    return 0.010 * (1 + 0.05 * num_tokens)


def make_controller(cost: Callable[[int], float] = nearly_flat) -> DraftLengthController:
    controller = DraftLengthController(num_speculative_tokens=MAX_LENGTH)
    for num_tokens in range(1, 300):
        controller.cost.observe(num_tokens, cost(num_tokens))
    return controller


def propose(num_tokens: int = MAX_LENGTH, confidence: float = MODEL_CONFIDENCE) -> Proposal:
    return Proposal((RIGHT,) * num_tokens, (confidence,) * num_tokens)


def learn(
    controller: DraftLengthController,
    request: Request,
    emitted: Sequence[int],
    *,
    kind: DraftKind = "suffix",
    times: int = 1,
) -> None:
    for _ in range(times):
        controller.observe(request, kind, propose(), emitted)


def length(controller: DraftLengthController, *requests: Request) -> int:
    """The draft length of the last request, where all propose as many tokens as they may."""
    survivals = {
        request.request_id: controller.survivals(
            request,
            "suffix",
            propose(controller.max_draft_tokens(request, num_rows=len(requests))),
        )
        for request in requests
    }
    return controller.lengths(requests, survivals)[requests[-1].request_id]


def model_length(
    controller: DraftLengthController, request: Request, lookup: Sequence[float] = ()
) -> int:
    lookups = {request.request_id: lookup} if lookup else {}
    return controller.model_lengths([request], lookups).get(request.request_id, 0)


def test_right_drafts_grow_to_the_longest() -> None:
    controller, request = make_controller(), make_request()
    learn(controller, request, [RIGHT] * MAX_LENGTH, times=20)
    assert length(controller, request) == MAX_LENGTH


def test_wrong_drafts_stop_and_come_back_when_what_is_not_drafted_turns_out_right() -> None:
    """vllm#49548 (89): a draft length that has collapsed stays so."""
    controller, request = make_controller(), make_request()
    before = length(controller, request)
    learn(controller, request, [WRONG], times=200)
    collapsed = length(controller, request)
    learn(controller, request, [RIGHT], times=200)
    assert (before > 0, collapsed) == (True, 0)
    assert length(controller, request) == MAX_LENGTH


def test_a_new_request_starts_with_what_others_learned() -> None:
    controller = make_controller()
    learn(controller, make_request(), [WRONG], times=100)
    assert length(controller, make_request(request_id="new")) == 0


def test_kinds_are_judged_separately() -> None:
    controller, request = make_controller(), make_request()
    learn(controller, request, [WRONG], times=50)
    learn(controller, request, [RIGHT] * MAX_LENGTH, kind="draft_model", times=50)
    assert length(controller, request) == 0
    assert model_length(controller, request) == MAX_LENGTH


def test_a_finished_request_is_forgotten() -> None:
    controller, request = make_controller(), make_request()
    other = make_request(request_id="other")
    for _ in range(50):
        learn(controller, request, [WRONG])
        learn(controller, other, [RIGHT] * MAX_LENGTH)
    proposal = propose()
    before = controller.survivals(request, "suffix", proposal)[0]
    controller.finish(request)
    assert controller.survivals(request, "suffix", proposal)[0] > before


def test_tokens_behind_a_wrong_one_teach_nothing() -> None:
    short, long = make_controller(), make_controller()
    request = make_request()
    short.observe(request, "suffix", propose(3), [RIGHT, WRONG])
    long.observe(request, "suffix", propose(8), [RIGHT, WRONG, RIGHT, RIGHT])
    assert short.survivals(request, "suffix", propose()) == long.survivals(
        request, "suffix", propose()
    )


@pytest.mark.parametrize(
    ("pinned", "max_tokens", "expected"),
    [
        pytest.param(0, 1000, 0, id="off"),
        pytest.param(3, 1000, 3, id="pinned"),
        pytest.param(50, 1000, MAX_LENGTH, id="more-than-the-server-allows"),
        pytest.param(5, 4, 3, id="no-more-than-remaining-minus-one"),
        pytest.param(5, 1, 0, id="last-token"),
        pytest.param(5, 0, 0, id="nothing-remains"),
        pytest.param(None, 4, 3, id="chosen-no-more-than-remaining-minus-one"),
        pytest.param(None, 1, 0, id="chosen-last-token"),
        pytest.param(None, 0, 0, id="chosen-nothing-remains"),
    ],
)
@pytest.mark.parametrize("emitted", [[RIGHT] * MAX_LENGTH, [WRONG]])
def test_pins_and_limits(
    pinned: int | None, max_tokens: int, expected: int, emitted: list[int]
) -> None:
    controller = make_controller()
    request = make_request(num_speculative_tokens=pinned, max_tokens=max_tokens)
    if pinned is None:
        emitted = [RIGHT] * MAX_LENGTH
    learn(controller, request, emitted, times=30)
    learn(controller, request, emitted, kind="draft_model", times=30)
    assert controller.max_draft_tokens(request, num_rows=1) == expected
    assert length(controller, request) == expected
    assert model_length(controller, request) == expected


@pytest.mark.parametrize(
    ("pinned", "lengths"), [(None, [8, 8, 4, 1, 1]), (6, [6, 6, 6, 6, 6]), (0, [0, 0, 0, 0, 0])]
)
def test_many_rows_share_what_is_proposed_but_for_pins(pinned, lengths) -> None:
    controller, request = make_controller(), make_request(num_speculative_tokens=pinned)
    num_rows = (1, 32, 64, 256, 1024)
    assert [controller.max_draft_tokens(request, num_rows=n) for n in num_rows] == lengths


def test_a_pin_is_kept_beside_requests_whose_length_is_chosen() -> None:
    controller = make_controller(lambda num_tokens: num_tokens)
    free, pinned = make_request(), make_request(request_id="pinned", num_speculative_tokens=5)
    learn(controller, free, [WRONG], times=50)
    assert length(controller, free, pinned) == 5
    assert length(controller, pinned, free) == 0


def test_pinned_tokens_take_their_room_in_the_step() -> None:
    """Seven tokens are sure, the stair ends at eight."""
    controller = make_controller(lambda n: 0.010 if n <= 8 else 0.018)
    requests = [make_request(), make_request(request_id="pinned", num_speculative_tokens=5)]
    survivals = {"r": [0.6, 0.5, 0.4], "pinned": [0.5] * 5}
    assert controller.lengths(requests, survivals) == {"r": 1, "pinned": 5}


def test_the_example_of_the_docstring() -> None:
    controller, request = make_controller(lambda n: 0.009 + 0.001 * n), make_request()
    assert controller.lengths([request], {"r": [0.8, 0.6, 0.1]}) == {"r": 2}


def test_the_most_likely_tokens_of_all_requests_are_taken() -> None:
    """Two rows cost 10 ms and each token one more: 0.5 tokens more are worth it, 0.1 are not."""
    controller = make_controller(lambda n: 0.008 + 0.001 * n)
    requests = [make_request(request_id=name) for name in "abc"]
    survivals = {"a": [0.9, 0.8, 0.1], "b": [0.1, 0.1], "c": [0.7]}
    assert controller.lengths(requests, survivals) == {"a": 2, "b": 0, "c": 1}


def test_a_stair_is_climbed_only_if_there_is_enough_on_it() -> None:
    controller = make_controller(lambda n: 0.010 if n <= 4 else 0.018)
    request = make_request()
    few, many = [0.9, 0.8, 0.7, 0.1, 0.1], [0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92]
    assert controller.lengths([request], {"r": few}) == {"r": 3}
    assert controller.lengths([request], {"r": many}) == {"r": 8}


def test_more_rows_make_drafts_shorter_where_a_step_costs_by_its_tokens() -> None:
    # 20 ms for the weights and 1 ms for each token.
    controller = make_controller(lambda n: 0.020 + 0.001 * n)
    requests = [make_request(request_id=str(row)) for row in range(30)]
    learn(controller, requests[0], [RIGHT] * 3 + [WRONG], times=50)
    lengths = [length(controller, *requests[:num_rows]) for num_rows in (1, 4, 16, 30)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 2 >= lengths[-1]


def test_slow_drafting_makes_model_drafts_shorter() -> None:
    lengths = []
    for draft_seconds in (0.0001, 0.008):
        controller, request = make_controller(), make_request()
        controller.cost.observe_drafting(4, 4 * draft_seconds)
        learn(controller, request, [RIGHT] * 4 + [WRONG], kind="draft_model", times=50)
        lengths.append(model_length(controller, request))
    assert lengths[0] > lengths[1]


@pytest.mark.parametrize("pinned", [None, 4])
def test_a_model_is_not_asked_where_a_lookup_is_worth_more(pinned: int | None) -> None:
    controller, request = make_controller(), make_request(num_speculative_tokens=pinned)
    controller.cost.observe_drafting(1, 0.001)
    assert model_length(controller, request, lookup=[0.99] * 6) == 0
    assert model_length(controller, request, lookup=[0.05]) > 0


def test_a_model_that_was_given_up_is_tried_now_and_then_for_a_bounded_share_of_time() -> None:
    controller, request = make_controller(), make_request()
    controller.cost.observe_drafting(1, 0.002)
    learn(controller, request, [WRONG], kind="draft_model", times=100)
    lengths = [model_length(controller, request) for _ in range(1000)]
    extra = sum(nearly_flat(1 + n) - nearly_flat(1) + 0.002 * n for n in lengths)
    assert 0 < extra <= 0.01 * 1000 * nearly_flat(1)
    assert set(lengths) == {0, 2}


def test_a_model_that_is_right_again_is_used_again() -> None:
    controller, request = make_controller(), make_request()
    controller.cost.observe_drafting(1, 0.0005)
    learn(controller, request, [WRONG], kind="draft_model", times=200)
    lengths = []
    for _ in range(600):
        lengths.append(model_length(controller, request))
        if lengths[-1]:
            proposal = propose(lengths[-1])
            controller.observe(request, "draft_model", proposal, [RIGHT] * (lengths[-1] + 1))
    assert lengths[0] == 0
    assert lengths[-1] == MAX_LENGTH
