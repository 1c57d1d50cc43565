"""An index of token sequences by their n-grams: where did the latest tokens occur before?

It grows token by token, is bounded by dropping the oldest finished sequences, and never scans. It
does not know requests, only sequence names, and groups whose sequences do not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_OCCURRENCES_KEPT = 8


@dataclass(frozen=True, slots=True)
class SuffixMatch:
    """The `num_matched` tokens before `end` in sequence `name` equal the tokens looked up."""

    name: str
    end: int
    num_matched: int


class SuffixIndex:
    """Every `min_match`-gram points to its latest occurrences; of these the longest match wins.

    Example: with `min_match` 2 and the sequence `a b c d x b c`, the last two tokens occurred
    before at end 3, and `d x b c` followed them.
    """

    def __init__(self, *, min_match: int, max_match: int, max_tokens: int) -> None:
        self._min_match = min_match
        self._max_match = max_match
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._sequences: dict[str, list[int]] = {}
        self._groups: dict[str, str] = {}
        self._is_open: dict[str, bool] = {}
        self._occurrences: dict[tuple[str, tuple[int, ...]], list[tuple[str, int]]] = {}

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def extend(self, name: str, token_ids: Sequence[int], *, group: str = "") -> None:
        """Bring the sequence up to `token_ids`, of which what is known already is a prefix."""
        known = self._sequences.setdefault(name, [])
        self._groups[name] = group
        self._is_open[name] = True
        first_end = max(len(known) + 1, self._min_match)
        self._num_tokens += len(token_ids) - len(known)
        known.extend(token_ids[len(known) :])
        for end in range(first_end, len(known) + 1):
            gram = tuple(known[end - self._min_match : end])
            occurrences = self._occurrences.setdefault((group, gram), [])
            occurrences.append((name, end))
            del occurrences[:-_OCCURRENCES_KEPT]
        self._evict()

    def close(self, name: str) -> None:
        """The sequence is complete: it stays findable until it is the oldest and room is needed."""
        self._is_open[name] = False
        self._evict()

    def longest_match(self, token_ids: Sequence[int], *, group: str = "") -> SuffixMatch | None:
        """The longest earlier occurrence of the last tokens that goes on; ties: the latest."""
        best: SuffixMatch | None = None
        gram = tuple(token_ids[-self._min_match :])
        for name, end in reversed(self._occurrences.get((group, gram), ())):
            sequence = self._sequences[name]
            if end == len(sequence):
                continue
            num_matched = self._matched(sequence, end, token_ids)
            if best is None or num_matched > best.num_matched:
                best = SuffixMatch(name, end, num_matched)
        return best

    def continuation(self, match: SuffixMatch, num_tokens: int) -> tuple[int, ...]:
        return tuple(self._sequences[match.name][match.end : match.end + num_tokens])

    def _matched(self, sequence: list[int], end: int, token_ids: Sequence[int]) -> int:
        limit = min(self._max_match, end, len(token_ids))
        for num_matched in range(self._min_match, limit):
            if sequence[end - num_matched - 1] != token_ids[-num_matched - 1]:
                return num_matched
        return limit

    def _evict(self) -> None:
        while self._num_tokens > self._max_tokens:
            oldest = next((name for name, is_open in self._is_open.items() if not is_open), None)
            if oldest is None:
                return
            self._remove(oldest)

    def _remove(self, name: str) -> None:
        sequence = self._sequences.pop(name)
        group = self._groups.pop(name)
        del self._is_open[name]
        self._num_tokens -= len(sequence)
        for end in range(self._min_match, len(sequence) + 1):
            key = group, tuple(sequence[end - self._min_match : end])
            kept = [entry for entry in self._occurrences.get(key, ()) if entry[0] != name]
            if kept:
                self._occurrences[key] = kept
            else:
                self._occurrences.pop(key, None)
