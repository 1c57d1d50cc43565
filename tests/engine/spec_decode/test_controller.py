"""The draft-length controller, fed with step costs and acceptances as the engine would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.messages import AddRequest, SamplingParams
from engine.request import Request
from engine.spec_decode.controller import AcceptanceRate, DraftLengthController, StepCost

MAX_LENGTH = 8


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


def step(
    controller: DraftLengthController,
    request: Request,
    num_right: Callable[[int], int],
    **fields: Any,
) -> int:
    """One decode step in which `num_right(length)` draft tokens are right; returns the length."""
    length = controller.max_draft_tokens(request, "suffix", num_rows=1, **fields)
    controller.observe(
        request,
        "suffix" if length else None,
        num_draft_tokens=length,
        num_accepted_tokens=num_right(length),
    )
    return length


def all_right(length: int) -> int:
    return length


def none_right(_length: int) -> int:
    return 0


def test_right_drafts_grow_to_the_longest() -> None:
    controller, request = make_controller(), make_request()
    assert [step(controller, request, all_right) for _ in range(50)][-1] == MAX_LENGTH


def test_wrong_drafts_stop() -> None:
    controller, request = make_controller(), make_request()
    lengths = [step(controller, request, none_right) for _ in range(40)]
    assert lengths[0] > 0
    assert lengths[-5:] == [0] * 5


def test_after_a_collapse_only_a_short_draft_is_tried_now_and_then() -> None:
    controller, request = make_controller(), make_request()
    for _ in range(100):
        step(controller, request, none_right)
    later = [step(controller, request, none_right) for _ in range(170)]
    assert 0 < sum(length > 0 for length in later) <= 10
    assert max(later) <= 2


def test_drafting_recovers_from_200_wrong_drafts() -> None:
    """vllm#49548 (89): a draft length that has collapsed stays so."""
    controller, request = make_controller(), make_request()
    for _ in range(200):
        controller.observe(request, "suffix", num_draft_tokens=4, num_accepted_tokens=0)
    collapsed = controller.max_draft_tokens(request, "suffix", num_rows=1)
    lengths = [step(controller, request, all_right) for _ in range(200)]
    assert collapsed == 0
    assert lengths[-1] == MAX_LENGTH


def test_a_new_request_starts_with_what_others_learned() -> None:
    controller, new = make_controller(), make_request(request_id="new")
    assert controller.max_draft_tokens(make_request(), "suffix", num_rows=1) > 4
    for _ in range(100):
        step(controller, make_request(), none_right)
    assert controller.max_draft_tokens(new, "suffix", num_rows=1) <= 1


def test_kinds_are_judged_separately() -> None:
    controller, request = make_controller(), make_request()
    for _ in range(50):
        controller.observe(request, "suffix", num_draft_tokens=4, num_accepted_tokens=0)
        controller.observe(request, "draft_model", num_draft_tokens=4, num_accepted_tokens=4)
    assert controller.max_draft_tokens(request, "suffix", num_rows=1) == 0
    assert controller.max_draft_tokens(request, "draft_model", num_rows=1) == MAX_LENGTH


def test_a_finished_request_is_forgotten() -> None:
    controller, request = make_controller(), make_request()
    other = make_request(request_id="other")
    for _ in range(50):
        controller.observe(request, "suffix", num_draft_tokens=4, num_accepted_tokens=0)
        controller.observe(other, "suffix", num_draft_tokens=8, num_accepted_tokens=8)
        controller.observe(other, "suffix", num_draft_tokens=8, num_accepted_tokens=8)
    before = controller.max_draft_tokens(request, "suffix", num_rows=1)
    controller.finish(request)
    assert controller.max_draft_tokens(request, "suffix", num_rows=1) > before


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
@pytest.mark.parametrize("history", [all_right, none_right])
def test_pins_and_limits(
    pinned: int | None, max_tokens: int, expected: int, history: Callable[[int], int]
) -> None:
    controller = make_controller()
    request = make_request(num_speculative_tokens=pinned, max_tokens=max_tokens)
    if pinned is None:
        history = all_right
    for _ in range(30):
        controller.observe(request, "suffix", num_draft_tokens=8, num_accepted_tokens=history(8))
    assert controller.max_draft_tokens(request, "suffix", num_rows=1) == expected


def test_a_pin_of_zero_is_never_explored() -> None:
    controller, request = make_controller(), make_request(num_speculative_tokens=0)
    assert [step(controller, request, all_right) for _ in range(60)] == [0] * 60


def test_exploring_respects_the_remaining_tokens() -> None:
    controller, request = make_controller(), make_request(max_tokens=2)
    for _ in range(200):
        controller.observe(request, "suffix", num_draft_tokens=4, num_accepted_tokens=0)
    lengths = {step(controller, request, none_right) for _ in range(60)}
    assert lengths == {0, 1}


def test_more_rows_make_drafts_shorter_where_a_step_costs_by_its_tokens() -> None:
    # 20 ms for the weights and 1 ms for each token.
    controller, request = make_controller(lambda n: 0.020 + 0.001 * n), make_request()
    for _ in range(50):
        controller.observe(request, "suffix", num_draft_tokens=4, num_accepted_tokens=3)
    lengths = [controller.max_draft_tokens(request, "suffix", num_rows=n) for n in (1, 4, 16, 30)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 2 >= lengths[-1]


def test_the_length_chosen_gives_the_most_tokens_per_second() -> None:
    controller, request = make_controller(lambda n: 0.005 + 0.001 * n), make_request()
    for _ in range(200):
        controller.observe(request, "suffix", num_draft_tokens=1, num_accepted_tokens=1)
        controller.observe(request, "suffix", num_draft_tokens=1, num_accepted_tokens=0)
    # Half are accepted, so k drafted tokens give 1, 1.5, 1.75, 1.875 in 6, 7, 8, 9 ms.
    assert controller.max_draft_tokens(request, "suffix", num_rows=1) == 2


def test_slow_drafting_makes_model_drafts_shorter() -> None:
    lengths = []
    for draft_seconds in (0.0001, 0.008):
        controller, request = make_controller(), make_request()
        controller.cost.observe_drafting(4, 4 * draft_seconds)
        for _ in range(50):
            controller.observe(request, "draft_model", num_draft_tokens=5, num_accepted_tokens=4)
        lengths.append(controller.max_draft_tokens(request, "draft_model", num_rows=1))
    assert lengths[0] > lengths[1]


def test_step_costs_are_interpolated_between_the_shapes_seen() -> None:
    cost = StepCost()
    assert cost.seconds(3) == cost.seconds(9)  # nothing is known: every shape is as good
    cost.observe(2, 0.010)
    cost.observe(6, 0.030)
    seconds = [cost.seconds(n) for n in (1, 2, 3, 4, 6, 100)]
    assert seconds == pytest.approx([0.010, 0.010, 0.015, 0.020, 0.030, 0.030])


def test_drafting_costs_by_the_token() -> None:
    cost = StepCost()
    cost.observe(4, 0.010)
    cost.observe_drafting(5, 0.010)
    assert cost.seconds(4, 3) == pytest.approx(0.010 + 3 * 0.002)


def test_one_slow_step_hardly_changes_the_cost_and_a_lasting_change_is_learned() -> None:
    cost = StepCost()
    cost.observe(1, 0.010)
    cost.observe(1, 10.0)
    assert cost.seconds(1) < 0.012
    for _ in range(100):
        cost.observe(1, 0.030)
    assert cost.seconds(1) == pytest.approx(0.030, rel=0.01)


def test_tokens_behind_the_first_rejected_one_are_not_counted_as_tried() -> None:
    short, long = AcceptanceRate(), AcceptanceRate()
    short.observe(num_draft_tokens=3, num_accepted_tokens=2)
    long.observe(num_draft_tokens=15, num_accepted_tokens=2)
    assert short.estimate(0.5) == long.estimate(0.5) == pytest.approx((2 + 0.5 * 2) / (3 + 2))
