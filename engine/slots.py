"""Who owns which KV slot, and which tokens each slot still holds for reuse.

It does not know the cache itself, only the token ids whose keys and values are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A slot, and how many of some request's first tokens are in it."""

    slot_id: int
    num_tokens: int


@dataclass(slots=True)
class _Slot:
    token_ids: list[int] = field(default_factory=list)
    cache_salt: str = ""
    is_busy: bool = False
    last_used: int = 0


class SlotTable:
    """`num_slots` slots. A freed slot keeps its tokens until another request needs it.

    They are offered to requests of the same cache salt only: how fast a prompt is read would tell
    others that it was sent before.
    """

    def __init__(self, num_slots: int) -> None:
        self._slots = [_Slot() for _ in range(num_slots)]
        self._clock = 0

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def num_busy(self) -> int:
        return sum(slot.is_busy for slot in self._slots)

    @property
    def has_idle(self) -> bool:
        return self.num_busy < self.num_slots

    def allocate(
        self, token_ids: Sequence[int], *, cache_salt: str = "", reuse: bool = True
    ) -> CachedPrefix:
        """Take an idle slot for a request, best the one with the longest prefix of `token_ids`.

        Where that slot is busy, or holds mostly other tokens, the least recently used idle slot is
        taken instead: what the other holds is kept, and the caller may copy the prefix.
        """
        slot_id = min(
            (i for i, slot in enumerate(self._slots) if not slot.is_busy),
            key=lambda i: self._slots[i].last_used,
        )
        if reuse:
            best = self.longest_prefix(token_ids, cache_salt)
            slot = self._slots[best.slot_id]
            if not slot.is_busy and 2 * best.num_tokens >= len(slot.token_ids):
                slot_id = best.slot_id
        num_cached_tokens = self._prefix(slot_id, token_ids, cache_salt) if reuse else 0
        slot = self._slots[slot_id]
        slot.is_busy = True
        slot.cache_salt = cache_salt
        del slot.token_ids[num_cached_tokens:]
        return CachedPrefix(slot_id, num_cached_tokens)

    def longest_prefix(self, token_ids: Sequence[int], cache_salt: str = "") -> CachedPrefix:
        """The slot that holds most of the first `token_ids`, an idle one where they are equal."""
        prefixes = [self._prefix(i, token_ids, cache_salt) for i in range(self.num_slots)]
        slot_id = max(
            range(self.num_slots), key=lambda i: (prefixes[i], not self._slots[i].is_busy)
        )
        return CachedPrefix(slot_id, prefixes[slot_id])

    def _prefix(self, slot_id: int, token_ids: Sequence[int], cache_salt: str) -> int:
        """At least one token is left to compute, since its logits are needed."""
        slot = self._slots[slot_id]
        if slot.cache_salt != cache_salt:
            return 0
        return min(common_prefix_length(slot.token_ids, token_ids), len(token_ids) - 1)

    def set_tokens(self, slot_id: int, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Say that the slot now holds the first `num_computed_tokens` of `token_ids`.

        Only what lies behind the tokens already known is looked at: a slot's prefix never changes
        while a request owns it.
        """
        known = self._slots[slot_id].token_ids
        del known[num_computed_tokens:]
        known.extend(token_ids[len(known) : num_computed_tokens])

    def free(self, slot_id: int) -> None:
        self._clock += 1
        slot = self._slots[slot_id]
        slot.is_busy = False
        slot.last_used = self._clock


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading elements are equal, by bisection over slice comparisons (which run in C)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
