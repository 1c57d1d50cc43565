"""Step costs: what ran in, what a step will take out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.spec_decode.step_cost import StepCost


def make_cost(readings: Mapping[int, float]) -> StepCost:
    cost = StepCost()
    for num_tokens, seconds in readings.items():
        cost.observe(num_tokens, seconds)
    return cost


def test_step_costs_are_interpolated_between_the_counts_seen() -> None:
    assert StepCost().seconds(3) == StepCost().seconds(9)  # nothing is known: all are as good
    cost = make_cost({2: 0.010, 6: 0.018})
    seconds = [float(cost.seconds(n)) for n in (1, 2, 3, 4, 6, 100)]
    assert seconds == pytest.approx([0.010, 0.010, 0.012, 0.014, 0.018, 0.018])


def test_a_stair_is_seen_at_its_first_step() -> None:
    """16 and 32 tokens are one pass, 17 are two."""
    cost = make_cost({16: 0.023, 32: 0.032})
    assert cost.seconds(17) < cost.seconds(32)
    cost.observe(17, 0.040)
    assert cost.seconds(17) == pytest.approx(0.040)
    assert cost.seconds(32) < cost.seconds(18) < cost.seconds(17)


def test_one_slow_step_hardly_changes_the_cost_and_a_lasting_change_is_learned() -> None:
    cost = make_cost({1: 0.010})
    cost.observe(1, 0.010)
    cost.observe(1, 10.0)
    assert cost.seconds(1) < 0.012
    for _ in range(100):
        cost.observe(1, 0.030)
    assert cost.seconds(1) == pytest.approx(0.030, rel=0.01)


def test_a_busy_machine_makes_what_does_not_run_dearer_as_well() -> None:
    cost = make_cost({1: 0.010, 16: 0.020})
    for _ in range(30):
        cost.observe(16, 0.040)
    assert cost.seconds(1) > 0.015


def test_a_count_that_ran_only_in_bad_times_gets_another_chance() -> None:
    cost = make_cost({1: 0.010, 16: 0.012})
    for _ in range(10):
        cost.observe(16, 0.024)
    after = float(cost.seconds(16) / cost.seconds(1))
    for _ in range(2000):
        cost.observe(1, 0.010)
    assert after > 1.3
    assert cost.seconds(16) / cost.seconds(1) == pytest.approx(1.2, rel=0.02)


def test_rows_have_their_own_cost() -> None:
    cost = make_cost({8: 0.020, 16: 0.024})
    assert cost.seconds(8, num_rows=8) == cost.seconds(8)  # until it is known better
    cost.observe(8, 0.030, num_rows=8)
    assert cost.seconds(8, num_rows=8) == cost.seconds(8, num_rows=5) == pytest.approx(0.030)
    assert cost.seconds(8) == cost.seconds(8, num_rows=4) == pytest.approx(0.020)


def test_drafting_costs_by_the_token() -> None:
    cost = StepCost()
    cost.observe_drafting(5, 0.010)
    assert cost.seconds_per_draft_token == pytest.approx(0.002)
