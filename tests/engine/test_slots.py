"""Slots and the reuse of what they hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.slots import CachedPrefix, SlotTable, common_prefix_length


def fill(slots: SlotTable, token_ids: list[int]) -> int:
    """A finished request that left its tokens in a slot."""
    slot_id = slots.allocate(token_ids).slot_id
    slots.set_tokens(slot_id, token_ids, len(token_ids))
    slots.free(slot_id)
    return slot_id


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_length_equals_the_plain_definition(a, b):
    expected = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        expected += 1
    assert common_prefix_length(a, b) == expected


def test_the_idle_slot_with_the_longest_prefix_is_taken():
    slots = SlotTable(3)
    fill(slots, [1, 2, 9, 9])
    longest = fill(slots, [1, 2, 3, 4, 9])
    assert slots.allocate([1, 2, 3, 4, 5]) == CachedPrefix(longest, 4)


def test_a_slot_that_holds_mostly_other_tokens_is_left_alone_for_copying():
    slots = SlotTable(2)
    long = fill(slots, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert slots.allocate([1, 2, 3, 7, 7]) != CachedPrefix(long, 3)
    assert slots.longest_prefix([1, 2, 3, 7, 7]) == CachedPrefix(long, 3)


def test_one_token_is_always_left_to_compute():
    slots = SlotTable(1)
    fill(slots, [1, 2, 3])
    assert slots.allocate([1, 2, 3]).num_tokens == 2


def test_without_a_match_the_least_recently_used_slot_is_taken():
    slots = SlotTable(3)
    oldest = fill(slots, [1, 1])
    held = slots.allocate([7]).slot_id
    fill(slots, [2, 2])
    slots.free(held)
    assert slots.allocate([5, 5]).slot_id in {oldest, 2}
    assert slots.num_busy == 1


def test_what_an_idle_slot_holds_is_kept_where_a_busy_slot_holds_more():
    slots = SlotTable(3)
    useful = fill(slots, [1, 2, 3])
    busy = slots.allocate([1, 2, 3, 4, 5, 6]).slot_id
    slots.set_tokens(busy, [1, 2, 3, 4, 5, 6], 6)
    assert busy == useful
    other = fill(slots, [1, 2, 8])
    assert slots.allocate([1, 2, 3, 4, 5, 9]).slot_id != other
    assert slots.longest_prefix([1, 2, 3, 4, 5, 9]) == CachedPrefix(busy, 5)


def test_a_reallocated_slot_no_longer_offers_the_old_tokens():
    slots = SlotTable(1)
    fill(slots, [1, 2, 3, 4])
    slots.allocate([1, 2, 7])
    assert slots.longest_prefix([1, 2, 3, 4, 5]).num_tokens == 2


def test_a_rejection_shortens_what_the_slot_holds():
    slots = SlotTable(1)
    slot_id = slots.allocate([1, 2, 3]).slot_id
    slots.set_tokens(slot_id, [1, 2, 3, 4, 5], 5)
    slots.set_tokens(slot_id, [1, 2, 3, 9, 9, 9], 3)
    assert slots.longest_prefix([1, 2, 3, 4, 5]).num_tokens == 3


@pytest.mark.parametrize("num_slots", [1, 3])
def test_busy_slots_are_never_allocated_twice(num_slots):
    slots = SlotTable(num_slots)
    taken = {slots.allocate([1, 2]).slot_id for _ in range(num_slots)}
    assert len(taken) == num_slots
    assert not slots.has_idle


def test_what_was_left_under_another_cache_salt_is_not_offered():
    slots = SlotTable(2)
    slot_id = slots.allocate([1, 2, 3, 4], cache_salt="secret").slot_id
    slots.set_tokens(slot_id, [1, 2, 3, 4], 4)
    for cache_salt, num_tokens in (("", 0), ("other", 0), ("secret", 4)):
        assert slots.longest_prefix([1, 2, 3, 4, 5], cache_salt).num_tokens == num_tokens
    slots.free(slot_id)
    assert slots.allocate([1, 2, 3, 4, 5]).num_tokens == 0
    assert slots.allocate([1, 2, 3, 4, 5], cache_salt="secret") == CachedPrefix(slot_id, 4)
