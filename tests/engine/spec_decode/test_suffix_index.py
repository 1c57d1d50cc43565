"""The suffix index: sequences in, matches out, and a brute-force search as the oracle."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec_decode.suffix_index import SuffixIndex, SuffixMatch

NUM_KEPT = 8


def make_index(
    sequences: dict[str, list[int]] | None = None,
    *,
    min_match: int = 2,
    max_match: int = 5,
    max_tokens: int = 1000,
) -> SuffixIndex:
    index = SuffixIndex(min_match=min_match, max_match=max_match, max_tokens=max_tokens)
    for name, token_ids in (sequences or {}).items():
        index.extend(name, token_ids)
    return index


@pytest.mark.parametrize(
    ("sequences", "token_ids", "expected"),
    [
        # The example of the docstring: b c came before, and d x b c followed.
        pytest.param({"a": [1, 2, 3, 4, 9, 2, 3]}, None, ("a", 3, 2), id="docstring"),
        # Nothing came before.
        pytest.param({"a": [1, 2, 3, 4]}, None, None, id="no-repetition"),
        # One token is less than min_match.
        pytest.param({"a": [1, 2, 3, 2]}, None, None, id="too-short-a-match"),
        pytest.param({"a": [1]}, None, None, id="shorter-than-min-match"),
        # The end of a sequence has nothing behind it.
        pytest.param({"a": [1, 2]}, [7, 1, 2], None, id="nothing-follows"),
        # Another sequence is searched as well.
        pytest.param({"a": [1, 2, 3], "b": [1, 2]}, None, ("a", 2, 2), id="other-sequence"),
        # Both match 2 3: the later occurrence wins.
        pytest.param(
            {"a": [2, 3, 4, 2, 3, 5], "b": [7, 2, 3]}, None, ("a", 5, 2), id="tie-latest-wins"
        ),
        # 1 2 3 is longer than the later 2 3.
        pytest.param(
            {"a": [1, 2, 3, 4], "b": [5, 2, 3, 6], "c": [1, 2, 3]},
            None,
            ("a", 3, 3),
            id="longest-beats-latest",
        ),
        # Matches are not followed beyond max_match, so the later of two long ones wins.
        pytest.param(
            {"a": [0, 1, 2, 3, 4, 5, 6], "b": [9, 1, 2, 3, 4, 5, 6], "c": [0, 1, 2, 3, 4, 5]},
            None,
            ("b", 6, 5),
            id="capped-at-max-match",
        ),
        # A match may overlap with the tokens that are looked up.
        pytest.param({"a": [1, 1, 1, 1]}, None, ("a", 3, 3), id="overlap"),
        # A match may reach to the very start of a sequence, and no further.
        pytest.param({"a": [1, 2, 3]}, [9, 1, 2], ("a", 2, 2), id="start-of-sequence"),
    ],
)
def test_the_longest_earlier_occurrence_is_found(
    sequences: dict[str, list[int]],
    token_ids: list[int] | None,
    expected: tuple[str, int, int] | None,
) -> None:
    looked_up = token_ids if token_ids is not None else list(sequences.values())[-1]
    match = make_index(sequences).longest_match(looked_up)
    assert match == (None if expected is None else SuffixMatch(*expected))


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(0, ()), (1, (3,)), (2, (3, 4)), (9, (3, 4))],
)
def test_a_continuation_ends_with_its_sequence(num_tokens: int, expected: tuple[int, ...]) -> None:
    index = make_index({"a": [1, 2, 3, 4]})
    assert index.continuation(SuffixMatch("a", 2, 2), num_tokens) == expected


def test_only_the_latest_occurrences_are_kept() -> None:
    # The long match is older than eight short ones.
    index = make_index({"long": [5, 1, 2, 7]})
    for number in range(NUM_KEPT):
        index.extend(f"short{number}", [6, 1, 2, 8])
    assert index.longest_match([5, 1, 2]) == SuffixMatch(f"short{NUM_KEPT - 1}", 3, 2)


def test_the_oldest_closed_sequence_is_dropped_for_room() -> None:
    index = make_index({"a": [1, 2, 3], "b": [1, 2, 4], "c": [5]}, max_tokens=6)
    assert index.num_tokens == 7  # an open sequence is never dropped
    index.close("b")
    assert index.num_tokens == 4
    assert index.longest_match([1, 2]) == SuffixMatch("a", 2, 2)
    index.close("a")
    index.extend("c", [5, 6, 7, 8])
    assert index.num_tokens == 4
    assert index.longest_match([1, 2]) is None


def test_a_sequence_longer_than_the_bound_goes_when_it_is_closed() -> None:
    index = make_index({"a": [1, 2] * 10}, max_tokens=5)
    assert index.longest_match([1, 2]) is not None
    index.close("a")
    assert (index.num_tokens, index.longest_match([1, 2])) == (0, None)


# Few distinct tokens, so that there are many matches.
texts = st.lists(st.integers(0, 2), max_size=40)


def brute_force(
    history: Iterable[tuple[str, int]],
    sequences: dict[str, list[int]],
    token_ids: list[int],
    *,
    min_match: int,
    max_match: int,
) -> SuffixMatch | None:
    """Scan all positions (in the order they were indexed) for what the index should answer."""
    gram = token_ids[-min_match:]
    ends = [
        (name, end)
        for name, end in history
        if len(gram) == min_match <= end and sequences[name][end - min_match : end] == gram
    ]
    matches = []
    for order, (name, end) in enumerate(ends[-NUM_KEPT:]):
        if end < len(sequences[name]):
            before = zip(reversed(sequences[name][:end]), reversed(token_ids), strict=False)
            num_equal = next((n for n, (x, y) in enumerate(before) if x != y), None)
            limit = min(end, len(token_ids), max_match)
            num_matched = limit if num_equal is None else min(num_equal, limit)
            matches.append((num_matched, order, name, end))
    if not matches:
        return None
    num_matched, _, name, end = max(matches)
    return SuffixMatch(name, end, num_matched)


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), texts), max_size=8),
    token_ids=texts,
    min_match=st.integers(1, 3),
    extra=st.integers(0, 4),
)
@settings(max_examples=150)
def test_the_index_answers_like_a_scan(
    steps: list[tuple[str, list[int]]], token_ids: list[int], min_match: int, extra: int
) -> None:
    limits = {"min_match": min_match, "max_match": min_match + extra}
    index = make_index(**limits)
    sequences: dict[str, list[int]] = {}
    history: list[tuple[str, int]] = []
    for name, more in steps:
        known = sequences.setdefault(name, [])
        history += [(name, len(known) + n + 1) for n in range(len(more))]
        known += more
        index.extend(name, list(known))
        expected = brute_force(history, sequences, known, **limits)
        assert index.longest_match(known) == expected
    assert index.longest_match(token_ids) == brute_force(history, sequences, token_ids, **limits)


@given(text=texts, cuts=st.sets(st.integers(0, 40)), token_ids=texts)
@settings(max_examples=100)
def test_growing_step_by_step_is_the_same_as_at_once(
    text: list[int], cuts: set[int], token_ids: list[int]
) -> None:
    at_once, grown = make_index({"a": text}), make_index()
    for cut in sorted({*cuts, len(text)}):
        grown.extend("a", text[:cut])
    assert grown.num_tokens == at_once.num_tokens == len(text)
    for looked_up in (text, token_ids):
        assert grown.longest_match(looked_up) == at_once.longest_match(looked_up)


@given(
    steps=st.lists(st.tuples(st.booleans(), texts), max_size=12),
    token_ids=texts,
    max_tokens=st.integers(0, 100),
)
@settings(max_examples=100)
def test_the_bound_is_kept_and_matches_stay_true(
    steps: list[tuple[bool, list[int]]], token_ids: list[int], max_tokens: int
) -> None:
    index = make_index(max_tokens=max_tokens)
    sequences: dict[str, list[int]] = {}
    open_tokens = 0
    for number, (is_closed, text) in enumerate(steps):
        name = str(number)
        sequences[name] = text
        index.extend(name, text)
        if is_closed:
            index.close(name)
        else:
            open_tokens += len(text)
        assert index.num_tokens <= max(max_tokens, open_tokens)
        for looked_up in (text, token_ids):
            match = index.longest_match(looked_up)
            if match is not None:
                source = sequences[match.name]
                assert source[: match.end][-match.num_matched :] == looked_up[-match.num_matched :]
                assert index.continuation(match, 99) == tuple(source[match.end :]) != ()
