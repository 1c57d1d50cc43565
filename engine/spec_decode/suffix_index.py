"""An index of token sequences: after which earlier places did the latest tokens occur before?

It grows token by token, holds one entry per token, drops the oldest finished sequences for room,
and never scans. It does not know requests, only sequence names, and groups whose sequences do not
see each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_PLACES_KEPT = 4
_NUMBER_SHIFT = 32
_END_MASK = (1 << _NUMBER_SHIFT) - 1


class SuffixMatch(NamedTuple):
    """The `num_matched` tokens before `end` in `token_ids` equal the tokens looked up."""

    token_ids: Sequence[int]
    end: int
    num_matched: int
    is_own: bool


@dataclass(slots=True, eq=False)
class _Sequence:
    number: int
    group: str
    token_ids: list[int] = field(default_factory=list)
    num_dropped: int = 0


# Places are sequence number and end in one integer, oldest first. Tuples of integers, unlike lists,
# cost the garbage collector nothing.
_Places = dict[tuple[int, ...], tuple[int, ...]]


class SuffixIndex:
    """The latest places behind each n-gram, for n = `min_match` and its doubles.

    A new place is entered under its shortest n-gram. Where that has too many, its oldest place
    moves on to its n-gram of twice the length, and from the longest one it is forgotten: so
    frequent short n-grams do not hide a long match, and each place is held once.

    Example: with the sequence `a b c d x b c`, the last two tokens occurred before at end 3.
    """

    def __init__(self, *, min_match: int, max_match: int, max_tokens: int) -> None:
        self._max_match = max_match
        self._max_tokens = max_tokens
        self._gram_lengths = list(_doubles(min_match, max_match))
        self._num_tokens = 0
        self._num_sequences = 0
        self._names: dict[str, int] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._closed: dict[int, None] = {}
        self._places: dict[str, _Places] = {}

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_places(self) -> int:
        return sum(len(places) for group in self._places.values() for places in group.values())

    def extend(
        self, name: str, token_ids: Sequence[int], *, group: str = "", max_new: int | None = None
    ) -> int:
        """Bring the sequence up to `token_ids`, of which what is known already is a prefix.

        Returns how many tokens were new; fewer than there are where `max_new` or the room ends.
        """
        sequence = self._sequence(name, group)
        start = len(sequence.token_ids)
        num_new = len(token_ids) - start
        num_new = self._make_room(num_new if max_new is None else min(num_new, max_new))
        sequence.token_ids.extend(token_ids[start : start + num_new])
        self._num_tokens += num_new
        places = self._places.setdefault(group, {})
        for end in range(start + 1, start + num_new + 1):
            self._enter(places, sequence.number << _NUMBER_SHIFT | end)
        return num_new

    def close(self, name: str) -> None:
        """The sequence is complete: it stays findable until it is the oldest and room is needed.

        Its name is free for another sequence.
        """
        self._closed[self._names.pop(name)] = None

    def matches(self, name: str, token_ids: Sequence[int], *, group: str = "") -> list[SuffixMatch]:
        """Earlier places of the last tokens that go on, few, the longest n-grams' first.

        `token_ids` are the sequence `name` and whatever is behind it.
        """
        places = self._places.get(group, {})
        own = self._names.get(name)
        latest = tuple(token_ids[-self._max_match :])
        found = []
        for length in reversed(self._gram_lengths):
            # A shorter text would be another n-gram.
            gram = latest[-length:] if length <= len(latest) else ()
            for place in places.get(gram, ()):
                number, end = place >> _NUMBER_SHIFT, place & _END_MASK
                is_own = number == own
                source = token_ids if is_own else self._sequences[number].token_ids
                if end < len(source):
                    num_matched = _num_matched(source, end, latest, length)
                    found.append(SuffixMatch(source, end, num_matched, is_own))
        return found

    def _sequence(self, name: str, group: str) -> _Sequence:
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = self._num_sequences
            self._num_sequences += 1
            self._sequences[number] = _Sequence(number, group)
        return self._sequences[number]

    def _enter(self, places: _Places, place: int) -> None:
        for length in self._gram_lengths:
            gram = self._gram(place, length)
            if not gram:
                return
            kept = places.get(gram, ())
            places[gram] = (*kept[1 - _PLACES_KEPT :], place)
            if len(kept) < _PLACES_KEPT:
                return
            place = kept[0]

    def _gram(self, place: int, length: int) -> tuple[int, ...]:
        """The tokens before the place; none where there are fewer."""
        first = (place & _END_MASK) - length
        if first < 0:
            return ()
        return tuple(self._sequences[place >> _NUMBER_SHIFT].token_ids[first : first + length])

    def _make_room(self, num_wanted: int) -> int:
        """Drop the oldest closed tokens; returns for how many of the wanted ones there is room."""
        while self._closed and (excess := self._num_tokens + num_wanted - self._max_tokens) > 0:
            self._drop(next(iter(self._closed)), excess)
        return max(0, min(num_wanted, self._max_tokens - self._num_tokens))

    def _drop(self, number: int, num_tokens: int) -> None:
        """Forget a closed sequence's first tokens; with the last of them it is gone."""
        sequence = self._sequences[number]
        first, num_known = sequence.num_dropped, len(sequence.token_ids)
        sequence.num_dropped = min(first + num_tokens, num_known)
        self._num_tokens -= sequence.num_dropped - first
        places = self._places.setdefault(sequence.group, {})
        for end in range(first + 1, sequence.num_dropped + 1):
            self._forget(places, number << _NUMBER_SHIFT | end)
        if not places:
            del self._places[sequence.group]
        if sequence.num_dropped == num_known:
            del self._closed[number], self._sequences[number]

    def _forget(self, places: _Places, place: int) -> None:
        for length in self._gram_lengths:
            gram = self._gram(place, length)
            kept = places.get(gram, ())
            if place in kept:
                places[gram] = tuple(other for other in kept if other != place)
                if not places[gram]:
                    del places[gram]
                return


def _doubles(first: int, last: int) -> Iterator[int]:
    yield first
    while (first := 2 * first) < last:
        yield first


def _num_matched(source: Sequence[int], end: int, latest: tuple[int, ...], num_known: int) -> int:
    limit = min(end, len(latest))
    for num_matched in range(num_known, limit):
        if source[end - num_matched - 1] != latest[-num_matched - 1]:
            return num_matched
    return limit
