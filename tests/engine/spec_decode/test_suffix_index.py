"""The suffix index: sequences in, earlier places out, and a scan of everything as the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec_decode.suffix_index import SuffixIndex

NUM_KEPT = 4
MAX_MATCH = 5
GRAM_LENGTHS = (1, 2, 4)

Place = tuple[int, ...]  # the tokens of a sequence up to a place


def make_index(sequences: dict[str, list[int]] | None = None, **limits: int) -> SuffixIndex:
    index = SuffixIndex(**{"min_match": 1, "max_match": MAX_MATCH, "max_tokens": 1000, **limits})
    for name, token_ids in (sequences or {}).items():
        index.extend(name, token_ids)
    return index


def find(
    index: SuffixIndex, token_ids: Sequence[int], *, name: str = "none", group: str = ""
) -> set[tuple[Place, int]]:
    """Text up to each place, and the length of the match."""
    return {
        (tuple(match.token_ids[: match.end]), match.num_matched)
        for match in index.matches(name, token_ids, group=group)
    }


@pytest.mark.parametrize(
    ("sequence", "token_ids", "expected"),
    [
        # The example of the docstring: b c came before at end 3; b alone did not.
        pytest.param([1, 2, 3, 4, 9], [7, 2, 3], {((1, 2, 3), 2)}, id="docstring"),
        pytest.param([1, 2, 3, 4], [9], set(), id="never-seen"),
        pytest.param([1, 2, 3], [], set(), id="nothing-looked-up"),
        pytest.param([1, 2], [7, 1, 2], set(), id="nothing-follows"),
        pytest.param([2, 3, 4, 2, 5], [2], {((2,), 1), ((2, 3, 4, 2), 1)}, id="two-places"),
        pytest.param(
            [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5], {((0, 1, 2, 3, 4, 5), 5)}, id="cap"
        ),
        pytest.param([1, 2, 3], [9, 1, 2], {((1, 2), 2)}, id="start-of-sequence"),
    ],
)
def test_earlier_places_are_found(sequence, token_ids, expected) -> None:
    assert find(make_index({"a": sequence}), token_ids) == expected


def test_fewer_equal_tokens_than_the_least_match_are_no_match() -> None:
    index = make_index({"a": [1, 2, 3, 4]}, min_match=2)
    assert find(index, [2]) == find(index, [9, 2]) == set()
    assert find(index, [1, 2]) == {((1, 2), 2)}


def test_the_own_text_goes_on_behind_what_is_indexed() -> None:
    index = make_index({"a": [1, 2]})
    (match,) = index.matches("a", [1, 2, 3, 2])
    assert (match.is_own, match.end, match.token_ids) == (True, 2, [1, 2, 3, 2])
    assert index.matches("b", [1, 2, 3, 2]) == []


def test_a_long_match_is_found_behind_many_short_ones() -> None:
    index = make_index({"long": [5, 6, 7, 1, 8]})
    for number in range(50):
        index.extend(f"short{number}", [9, 1, number])
    assert ((5, 6, 7, 1), 4) in find(index, [5, 6, 7, 1])


def test_groups_do_not_see_each_other() -> None:
    index = make_index()
    index.extend("a", [1, 2, 3], group="one")
    assert find(index, [1, 2], group="two") == find(index, [1, 2]) == set()
    assert find(index, [1, 2], group="one") == {((1, 2), 2)}


def test_the_oldest_closed_tokens_make_room() -> None:
    index = make_index({"a": [1, 2, 3], "b": [4, 5, 6]}, max_tokens=7)
    index.close("b")
    index.close("a")
    index.extend("c", [7, 8])
    assert index.num_tokens == 7
    assert find(index, [4]) == set()
    assert find(index, [5]) == {((4, 5), 1)}
    assert find(index, [1, 2]) == {((1, 2), 2)}


def test_open_sequences_are_not_dropped_and_a_new_one_waits_for_room() -> None:
    index = make_index({"a": [1, 2, 3]}, max_tokens=4)
    assert index.extend("b", [4, 5, 6]) == 1
    assert find(index, [1]) == {((1,), 1)}
    index.close("a")
    assert index.extend("b", [4, 5, 6]) == 2
    assert find(index, [4]) == {((4,), 1)}
    assert index.num_tokens == 4


def test_a_sequence_grows_by_no_more_than_is_allowed() -> None:
    index = make_index()
    assert [index.extend("a", [1, 2, 3, 4, 5], max_new=2) for _ in range(4)] == [2, 2, 1, 0]
    assert find(index, [4]) == {((1, 2, 3, 4), 1)}


def test_a_name_that_comes_again_is_another_sequence() -> None:
    index = make_index({"a": [1, 2, 3]})
    index.close("a")
    index.extend("a", [4, 5])
    assert index.num_tokens == 5
    assert find(index, [2]) == {((1, 2), 1)}
    assert find(index, [4]) == {((4,), 1)}


def test_everything_is_forgotten_with_the_last_sequence() -> None:
    index = make_index({"a": [1, 2] * 10}, max_tokens=20)
    index.close("a")
    index.extend("b", [7] * 20, group="other")
    assert find(index, [1, 2]) == set()
    assert (index.num_tokens, index.num_places) == (20, 3 * NUM_KEPT)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_repeating_text_of_any_length_takes_constant_room(period) -> None:
    index = make_index({"a": list(range(period)) * (30_000 // period)}, max_tokens=100_000)
    assert index.num_tokens == 30_000
    assert index.num_places == period * len(GRAM_LENGTHS) * NUM_KEPT
    assert len(index.matches("a", [*range(period)] * 5)) <= len(GRAM_LENGTHS) * NUM_KEPT


# Few distinct tokens, so that there are many matches.
texts = st.lists(st.integers(0, 2), max_size=40)


def latest_places(
    history: Iterable[tuple[str, int]], sequences: dict[str, list[int]], gram: list[int]
) -> list[tuple[str, int]]:
    """By a scan of all places, in the order in which they were entered."""
    length = len(gram)
    places = [(n, e) for n, e in history if e >= length and sequences[n][e - length : e] == gram]
    return places[-NUM_KEPT:]


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), texts), max_size=8),
    token_ids=texts.filter(bool),
)
@settings(max_examples=150)
def test_the_latest_places_behind_each_gram_are_found_and_all_that_is_found_is_true(
    steps, token_ids
) -> None:
    index = make_index()
    sequences: dict[str, list[int]] = {}
    history: list[tuple[str, int]] = []
    for name, more in steps:
        known = sequences.setdefault(name, [])
        history += [(name, len(known) + n + 1) for n in range(len(more))]
        known += more
        index.extend(name, list(known))
    found = index.matches("none", token_ids)
    for match in found:
        before = zip(reversed(match.token_ids[: match.end]), reversed(token_ids), strict=False)
        num_equal = next((n for n, (x, y) in enumerate(before) if x != y), None)
        limit = min(match.end, len(token_ids), MAX_MATCH)
        assert match.num_matched == (limit if num_equal is None else min(num_equal, limit)) > 0
    assert len(found) == len({(id(match.token_ids), match.end) for match in found})
    places = {(tuple(match.token_ids), match.end) for match in found}
    for length in GRAM_LENGTHS:
        if length <= len(token_ids):
            for name, end in latest_places(history, sequences, token_ids[-length:]):
                assert end == len(sequences[name]) or (tuple(sequences[name]), end) in places


@given(text=texts, cuts=st.sets(st.integers(0, 40)), token_ids=texts)
@settings(max_examples=100)
def test_growing_step_by_step_is_the_same_as_at_once(text, cuts, token_ids) -> None:
    at_once, grown = make_index({"a": text}), make_index()
    for cut in sorted({*cuts, len(text)}):
        grown.extend("a", text[:cut])
    assert grown.num_tokens == at_once.num_tokens == len(text)
    assert grown.num_places == at_once.num_places
    for looked_up in (text, token_ids):
        assert grown.matches("a", looked_up) == at_once.matches("a", looked_up)


@given(
    steps=st.lists(st.tuples(st.booleans(), texts), max_size=12),
    token_ids=texts,
    max_tokens=st.integers(0, 100),
)
@settings(max_examples=100)
def test_the_bound_is_kept_and_matches_stay_true(steps, token_ids, max_tokens) -> None:
    index = make_index(max_tokens=max_tokens)
    for number, (is_closed, text) in enumerate(steps):
        index.extend(str(number), text)
        if is_closed:
            index.close(str(number))
        assert index.num_places <= index.num_tokens <= max_tokens
        for name, looked_up in ((str(number), text), ("none", token_ids)):
            for match in index.matches(name, looked_up):
                matched = match.token_ids[: match.end][-match.num_matched :]
                assert list(matched) == looked_up[-match.num_matched :]
                assert match.end < len(match.token_ids)
