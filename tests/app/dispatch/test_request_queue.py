from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.request_queue import RequestQueue
from app.errors import QueueFullError
from engine.messages import AddRequest, SamplingParams


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def request(
    request_id: str, *, num_prompt_tokens: int = 1, max_tokens: int = 9, priority: int = 0
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=[1] * num_prompt_tokens,
        sampling_params=SamplingParams(max_tokens=max_tokens),
        priority=priority,
    )


def queue(**options) -> RequestQueue:
    return RequestQueue(**{"max_num_requests": 100, "max_num_tokens": 1000, **options})


def drain(waiting: RequestQueue) -> list[str]:
    popped = []
    while (found := waiting.pop()) is not None:
        popped.append(found.request_id)
    return popped


def test_requests_of_one_tenant_leave_by_priority_and_then_by_arrival():
    waiting = queue()
    for name, priority in [("c", 0), ("d", 0), ("e", 5), ("a", -3), ("b", -3)]:
        waiting.add(request(name, priority=priority), tenant="")
    assert drain(waiting) == ["a", "b", "c", "d", "e"]
    assert len(waiting) == waiting.num_tokens == 0


def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few():
    waiting = queue()
    for i in range(50):
        waiting.add(request(f"many{i}"), tenant="many")
    for i in range(3):
        waiting.add(request(f"few{i}"), tenant="few")
    assert [name[:3] for name in drain(waiting)][:6] == ["man", "few"] * 3


def test_turns_are_shared_by_tokens_and_not_by_requests():
    waiting = queue()
    for i in range(30):
        waiting.add(request(f"long{i}", max_tokens=39), tenant="long")
        waiting.add(request(f"short{i}", max_tokens=9), tenant="short")
    first = Counter(waiting.pop().request_id.rstrip("0123456789") for _ in range(20))
    assert first == {"short": 16, "long": 4}


def test_a_tenant_who_was_idle_has_not_saved_up_turns():
    waiting = queue()
    waiting.add(request("early"), tenant="sleeper")
    for i in range(20):
        waiting.add(request(f"busy{i}"), tenant="busy")
    for _ in range(11):
        waiting.pop()
    for i in range(10):
        waiting.add(request(f"late{i}"), tenant="sleeper")
    assert [name[:4] for name in drain(waiting)][:6] in (
        ["late", "busy"] * 3,
        ["busy", "late"] * 3,
    )


def test_a_priority_counts_before_fairness():
    waiting = queue()
    waiting.add(request("greedy1", priority=-1), tenant="greedy")
    waiting.add(request("greedy2", priority=-1), tenant="greedy")
    waiting.add(request("patient"), tenant="patient")
    assert drain(waiting) == ["greedy1", "greedy2", "patient"]


def test_a_replayed_request_goes_first_in_its_priority_and_never_expires():
    clock = Clock()
    waiting = queue(clock=clock)
    waiting.add(request("new"), tenant="a")
    waiting.add(request("urgent", priority=-1), tenant="a")
    waiting.add(request("again1"), tenant="b", front=True)
    waiting.add(request("again2"), tenant="b", front=True)
    clock.now = 10.0
    assert waiting.expired(9.0) == ["urgent", "new"]
    assert drain(waiting) == ["urgent", "again1", "again2", "new"]


def test_only_those_who_waited_too_long_expire():
    clock = Clock()
    waiting = queue(clock=clock)
    waiting.add(request("old"), tenant="")
    clock.now = 5.0
    waiting.add(request("young"), tenant="")
    clock.now = 8.0
    assert waiting.expired(4.0) == ["old"]
    assert waiting.expired(8.0) == []


def test_a_full_queue_refuses_all_requests_of_a_call_or_none():
    waiting = queue(max_num_requests=3)
    waiting.add(request("a"), tenant="")
    waiting.check_room([request("b"), request("c")])
    with pytest.raises(QueueFullError, match="1 requests are waiting"):
        waiting.check_room([request("b"), request("c"), request("d")])
    assert len(waiting) == 1


def test_a_queue_is_also_bounded_by_prompt_tokens():
    waiting = queue(max_num_tokens=10)
    waiting.add(request("a", num_prompt_tokens=6), tenant="")
    waiting.check_room([request("b", num_prompt_tokens=4)])
    with pytest.raises(QueueFullError, match="6 prompt tokens"):
        waiting.check_room([request("b", num_prompt_tokens=5)])


def test_an_empty_queue_has_room_for_a_call_that_is_larger_than_itself():
    waiting = queue(max_num_requests=2, max_num_tokens=10)
    waiting.check_room([request(str(i), num_prompt_tokens=50) for i in range(5)])


def test_a_removed_request_is_gone_and_makes_room():
    waiting = queue(max_num_requests=2)
    waiting.add(request("a"), tenant="")
    waiting.add(request("b"), tenant="")
    assert waiting.remove("a")
    assert not waiting.remove("a")
    waiting.check_room([request("c")])
    assert drain(waiting) == ["b"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.booleans()), max_size=40))
def test_every_request_leaves_exactly_once(added):
    waiting = queue()
    names = [f"{tenant}{i}" for i, (tenant, _, _) in enumerate(added)]
    for name, (tenant, priority, front) in zip(names, added, strict=True):
        waiting.add(request(name, priority=priority), tenant=tenant, front=front)
    removed = random.Random(len(names)).sample(names, len(names) // 3)
    assert all(waiting.remove(name) for name in removed)
    assert len(waiting) == waiting.num_tokens == len(names) - len(removed)
    assert sorted(drain(waiting) + removed) == sorted(names)
    assert len(waiting) == waiting.num_tokens == 0
