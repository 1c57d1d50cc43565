"""What confidences are worth."""

from __future__ import annotations

import pytest

from engine.spec_decode.acceptance import KindAcceptance, RequestAcceptance, survival_probs


def test_a_claim_is_believed_until_it_is_tried() -> None:
    kind = KindAcceptance()
    assert kind.prob(0.5) == pytest.approx(0.55)  # the middle of its level
    for number in range(400):
        kind.observe(0.55, is_right=number % 4 == 0)
    assert kind.prob(0.5) == pytest.approx(0.25, abs=0.03)


def test_levels_of_confidence_are_judged_separately() -> None:
    kind = KindAcceptance()
    before = kind.prob(0.9)
    for _ in range(100):
        kind.observe(0.3, is_right=True)
    assert kind.prob(0.9) == before
    assert kind.prob(0.3) > 0.9


def test_a_request_with_the_luck_of_its_kind_is_nothing_special() -> None:
    request = RequestAcceptance()
    assert request.odds == 1.0
    for number in range(100):
        request.observe(0.75, is_right=number % 4 != 0)
    assert request.odds == pytest.approx(1.0)


def test_a_lucky_request_has_better_odds_and_an_unlucky_one_worse() -> None:
    lucky, unlucky = RequestAcceptance(), RequestAcceptance()
    for _ in range(10):
        lucky.observe(0.5, is_right=True)
        unlucky.observe(0.5, is_right=False)
    assert lucky.odds == pytest.approx(1 / unlucky.odds)
    assert lucky.odds > 2


def test_luck_fades() -> None:
    request = RequestAcceptance()
    for _ in range(10):
        request.observe(0.5, is_right=True)
    before = request.odds
    for _ in range(500):
        request.fade()
    assert 1 <= request.odds < 1.01 < before


def test_a_token_survives_if_all_before_it_do() -> None:
    survivals = survival_probs([0.5, 0.75, 0.5], KindAcceptance(), RequestAcceptance())
    assert survivals == pytest.approx([0.55, 0.55 * 0.75, 0.55 * 0.75 * 0.55])
