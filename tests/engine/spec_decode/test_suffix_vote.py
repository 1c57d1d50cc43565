"""Places in, the most likely continuation out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.spec_decode.proposer import Proposal
from engine.spec_decode.suffix_index import SuffixMatch
from engine.spec_decode.suffix_vote import vote


def run(
    token_ids: Sequence[int],
    matches: Sequence[SuffixMatch],
    *,
    max_tokens: int = 4,
    max_match: int = 8,
    min_survival: float = 0.0,
) -> Proposal:
    return vote(
        token_ids, matches, max_tokens=max_tokens, max_match=max_match, min_survival=min_survival
    )


def other(token_ids: Sequence[int], end: int, num_matched: int) -> SuffixMatch:
    return SuffixMatch(token_ids, end, num_matched, is_own=False)


def own(token_ids: Sequence[int], end: int, num_matched: int) -> SuffixMatch:
    return SuffixMatch(token_ids, end, num_matched, is_own=True)


def test_no_place_no_draft() -> None:
    assert run([1, 2], []) == Proposal((), ())


def test_the_longer_match_wins_and_is_followed_alone() -> None:
    long, short = [1, 2, 3, 4, 5], [9, 2, 6, 4, 7]
    assert run([1, 2], [other(short, 2, 1), other(long, 2, 2)]).token_ids == (3, 4, 5)


def test_a_match_weighs_more_than_its_length() -> None:
    matches = [other([1, 2, 3, 4], 3, 3), *[other([2, 3, 6], 2, 2)] * 2]
    assert run([1, 2, 3], matches, max_tokens=1).token_ids == (4,)


def test_places_that_voted_for_another_token_have_no_say_behind_it() -> None:
    """Three short matches lose by 3 to 4, and would win one token later by 12 to 9."""
    matches = [other([1, 2, 3, 4], 2, 2), *[other([2, 6, 7], 1, 1)] * 3]
    assert run([1, 2], matches, max_tokens=2).token_ids == (3, 4)


def test_several_short_matches_outvote_a_longer_one() -> None:
    short = [other([2, 6], 1, 1)] * 5
    assert run([1, 2], [other([1, 2, 3], 2, 2), *short]).token_ids == (6,)


def test_the_own_text_outvotes_another_that_matches_as_long() -> None:
    text = [1, 2, 3, 1, 2]
    matches = [other([1, 2, 6], 2, 2)] * 3 + [own(text, 2, 2)]
    assert run(text, matches, max_tokens=1).token_ids == (3,)


@pytest.mark.parametrize(
    ("text", "end", "draft"),
    [
        pytest.param([1, 1], 1, (1, 1, 1, 1, 1), id="period-one"),
        pytest.param([1, 2, 1, 2], 2, (1, 2, 1, 2, 1), id="period-two"),
        pytest.param([1, 2, 3, 1, 2], 2, (3, 1, 2, 3, 1), id="period-three"),
    ],
)
def test_what_repeats_up_to_the_end_is_repeated(text, end, draft) -> None:
    assert run(text, [own(text, end, 1)], max_tokens=5).token_ids == draft


def test_a_draft_ends_with_another_text() -> None:
    assert run([1, 2], [other([1, 2, 3], 2, 2)], max_tokens=5).token_ids == (3,)


def test_confidence_grows_with_the_match_and_falls_with_disagreement() -> None:
    def first(*matches: SuffixMatch) -> float:
        return run([1, 2], matches, max_tokens=1).confidences[0]

    alone = first(other([1, 2, 3], 2, 2))
    assert first(other([1, 2, 3], 2, 1)) < alone < first(other([1, 2, 3], 2, 8))
    assert first(other([1, 2, 3], 2, 2), other([2, 6], 1, 1)) < alone
    assert alone < first(other([1, 2, 3], 2, 2), other([2, 3], 1, 1))


def test_each_token_that_is_followed_makes_the_match_longer_up_to_the_longest() -> None:
    source = list(range(1, 12))
    confidences = run([1, 2], [other(source, 2, 2)], max_tokens=9, max_match=5).confidences
    assert list(confidences[:4]) == sorted(set(confidences[:4]))
    assert len(set(confidences[3:])) == 1


def test_a_draft_that_is_no_longer_likely_ends() -> None:
    source = list(range(1, 30))
    whole = run([1], [other(source, 1, 1)], max_tokens=20)
    cut = run([1], [other(source, 1, 1)], max_tokens=20, min_survival=whole.confidences[0] * 1.01)
    assert len(whole.token_ids) == 20
    assert cut.token_ids == (2,)
