"""Finding stop strings in text that arrives in pieces. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Releases text as soon as no stop string can begin in it; ends before the one that completes,
    or behind it with `keep_match`, where nothing has to wait.

    >>> matcher = StopStringMatcher(["<end>"])
    >>> [matcher.feed("Hi <e"), matcher.feed("m> <en"), matcher.feed("d> more"), matcher.matched]
    ['Hi ', '<em> ', '', True]
    """

    def __init__(self, stop_strings: Sequence[str], *, keep_match: bool = False) -> None:
        self._stops = [_StopString(text) for text in stop_strings]
        self._first_characters = frozenset(text[:1] for text in stop_strings)
        self._num_matched = 0
        self._keep_match = keep_match
        self._held = ""
        self.matched = False

    def feed(self, text: str, *, may_stop: bool = True) -> str:
        """The text that is now certain. Stops that complete while not `may_stop` are plain text."""
        assert not self.matched, "nothing follows a stop"
        if not self._num_matched and self._first_characters.isdisjoint(text):
            return text
        text = self._held + text
        for end in range(len(self._held) + 1, len(text) + 1):
            # Of those that complete here, the one that begins first.
            length = max(stop.advance(text[end - 1]) for stop in self._stops)
            if length and may_stop:
                self._held = ""
                self.matched = True
                return text[: end if self._keep_match else end - length]
        self._num_matched = max(stop.num_matched for stop in self._stops)
        if self._keep_match:
            return text
        num_certain = len(text) - self._num_matched
        self._held = text[num_certain:]
        return text[:num_certain]

    def flush(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held


class _StopString:
    """One stop string's Knuth-Morris-Pratt automaton: its cost does not grow with the length."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fallbacks = _fallbacks(text)
        self.num_matched = 0

    def advance(self, character: str) -> int:
        """The stop string's length if this character completes it, else 0."""
        num_matched = self.num_matched
        while num_matched and self._text[num_matched] != character:
            num_matched = self._fallbacks[num_matched - 1]
        if self._text[num_matched] == character:
            num_matched += 1
        if num_matched < len(self._text):
            self.num_matched = num_matched
            return 0
        self.num_matched = self._fallbacks[-1]
        return len(self._text)


def _fallbacks(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix.

    >>> _fallbacks("abab")
    [0, 0, 1, 2]
    """
    fallbacks = [0] * len(text)
    length = 0
    for position in range(1, len(text)):
        while length and text[position] != text[length]:
            length = fallbacks[length - 1]
        if text[position] == text[length]:
            length += 1
        fallbacks[position] = length
    return fallbacks
