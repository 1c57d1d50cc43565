from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.text.stop_strings import StopStringMatcher

letters = st.text(alphabet="ab", max_size=12)
stop_strings = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: list[str]) -> str:
    """The text before the stop that completes first; the longest of those that do."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def read(matcher: StopStringMatcher, pieces: list[str]) -> str:
    text = ""
    for piece in pieces:
        text += matcher.feed(piece)
        if matcher.matched:
            return text
    return text + matcher.flush()


@given(st.lists(letters, max_size=6), stop_strings)
def test_text_is_cut_before_the_stop_that_completes_first(pieces, stops):
    assert read(StopStringMatcher(stops), pieces) == cut("".join(pieces), stops)


@given(letters, stop_strings)
def test_only_the_longest_possible_beginning_of_a_stop_is_held_back(text, stops):
    matcher = StopStringMatcher(stops)
    released = matcher.feed(text)
    held = text[len(released) :]
    beginnings = [stop[:n] for stop in stops for n in range(len(stop))]
    if not matcher.matched:
        assert held == max((b for b in beginnings if text.endswith(b)), key=len, default="")


def test_a_stop_of_a_thousand_characters_is_found_across_pieces():
    stop = "ab" * 499 + "cd"
    pieces = list("ab" * 3 + stop + "tail")
    assert read(StopStringMatcher([stop]), pieces) == "ab" * 3


def test_a_stop_that_may_not_stop_is_plain_text():
    matcher = StopStringMatcher(["ab"])
    assert matcher.feed("xaby", may_stop=False) == "xaby"
    assert not matcher.matched


def test_a_stop_may_begin_before_and_complete_after_it_is_allowed():
    matcher = StopStringMatcher(["abc"])
    assert matcher.feed("xab", may_stop=False) == "x"
    assert matcher.feed("cd") == ""
    assert matcher.matched
