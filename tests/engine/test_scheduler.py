"""The scheduler's bounds and the one terminal answer, also under random schedules."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.driver import Generation, add_request, run, take
from tests.engine.fake_backend import FakeBackend, ScriptedProposer, build_core, continuation


def phases(core, num_steps: int) -> list[str]:
    steps = [core.step() for _ in range(num_steps)]
    return [step.stats.phase for step in steps if step.stats.phase is not None]


def longest_run(phases: list[str], phase: str) -> int:
    longest = current = 0
    for other in phases:
        current = current + 1 if other == phase else 0
        longest = max(longest, current)
    return longest


BOUNDS = [(1, 1), (2, 1), (1, 3), (3, 2)]


@pytest.mark.parametrize(("max_prefills", "max_decodes"), BOUNDS)
def test_prefill_and_decode_hold_each_other_back_no_longer_than_their_bounds(
    max_prefills, max_decodes
):
    core = build_core(
        FakeBackend(max_model_len=512, num_slots=3),
        max_consecutive_prefills=max_prefills,
        max_consecutive_decodes=max_decodes,
    )
    core.add_request(add_request("decoding", [1], max_tokens=100))
    core.step()
    core.add_request(add_request("long", [2] * 300, max_tokens=2))
    seen = phases(core, 30)
    assert longest_run(seen, "prefill") == max_prefills
    assert longest_run(seen, "decode") == max_decodes


def test_a_long_prompt_runs_in_chunks_without_pause_when_nothing_decodes():
    backend = FakeBackend(max_model_len=128)
    core = build_core(backend, max_num_batched_tokens=8)
    run(core, [add_request("a", [1] * 60, max_tokens=1)])
    sizes = [len(row.token_ids) for rows in backend.forwards for row in rows]
    assert sizes == [8] * 7 + [4]


def test_the_token_budget_is_shared_in_order_of_arrival():
    backend = FakeBackend()
    core = build_core(backend, max_num_batched_tokens=8)
    core.add_request(add_request("a", [1] * 5, max_tokens=1))
    core.add_request(add_request("b", [2] * 9, max_tokens=1))
    core.step()
    assert [len(row.token_ids) for row in backend.forwards[0]] == [5, 3]


class EngineUnderRandomUse(RuleBasedStateMachine):
    """Requests come, are aborted and step in any order; the fake backend checks the KV itself."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = FakeBackend(num_slots=3, max_model_len=48)
        self.core = build_core(
            self.backend, [ScriptedProposer(wrong_every=3)], max_num_batched_tokens=6
        )
        self.expected: dict[str, list[int]] = {}
        self.aborted: set[str] = set()
        self.generations: dict[str, Generation] = {}

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        num_speculative_tokens=st.sampled_from([None, 0, 1, 4]),
        priority=st.integers(-1, 1),
        prompt_logprobs=st.sampled_from([None, None, 0]),
    )
    def add(self, prompt, max_tokens, num_speculative_tokens, priority, prompt_logprobs):
        request_id = str(len(self.expected))
        self.expected[request_id] = continuation(prompt, max_tokens)
        self.core.add_request(
            add_request(
                request_id,
                prompt,
                max_tokens=max_tokens,
                num_speculative_tokens=num_speculative_tokens,
                priority=priority,
                num_prompt_logprobs=prompt_logprobs,
            )
        )

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.expected)))
        self.aborted.add(request_id)
        self.core.abort_request(request_id)

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps):
        for _ in range(num_steps):
            take(self.generations, self.core.step())

    @invariant()
    def text_is_a_prefix_of_what_it_should_be_and_ends_at_most_once(self):
        for request_id, generation in self.generations.items():
            expected = self.expected[request_id]
            assert generation.token_ids == expected[: len(generation.token_ids)]
            assert len(generation.finish_reasons) <= 1

    def teardown(self):
        while self.core.has_work:
            take(self.generations, self.core.step())
        for request_id, expected in self.expected.items():
            generation = self.generations[request_id]
            assert len(generation.finish_reasons) == 1
            if generation.finish_reasons != ["abort"]:
                assert generation.token_ids == expected
            else:
                assert request_id in self.aborted


EngineUnderRandomUse.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestEngineUnderRandomUse = EngineUnderRandomUse.TestCase
