"""The controller on made-up acceptance traces, against every fixed draft length in hindsight.

Time is what a cost curve says, and which tokens are right is fixed beforehand for each position of
each row, so every run gives the same numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from engine.messages import AddRequest, DraftKind, SamplingParams
from engine.request import Request
from engine.spec_decode.controller import MODEL_CONFIDENCE, DraftLengthController
from engine.spec_decode.proposer import Proposal

MAX_LENGTH = 15
NUM_POSITIONS = 1200
FIXED_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 11, 15)
MEASURED = (1, 2, 4, 6, 8, 12, 16, 32, 64, 128, 256)

RIGHT, WRONG = 1, 0

Curve = Callable[[int], float]
Trace = list[list[bool]]


def flat(_num_tokens: int) -> float:
    return 0.025


def linear(num_tokens: int) -> float:
    return 0.020 + 0.001 * num_tokens


def staircase(num_tokens: int) -> float:
    """Padded to the next power of two."""
    return 0.020 + 0.001 * 2 ** math.ceil(math.log2(num_tokens))


def constant(_position: int) -> float:
    return 0.7


def collapsing(position: int) -> float:
    return 0.9 if position < NUM_POSITIONS // 4 else 0.02


def bursty(position: int) -> float:
    return 0.95 if position // 100 % 2 else 0.1


def hopeless(_position: int) -> float:
    return 0.02


def make_trace(accept_prob: Callable[[int], float], num_rows: int) -> Trace:
    chance = random.Random(0)
    return [
        [chance.random() < accept_prob(position) for position in range(NUM_POSITIONS + MAX_LENGTH)]
        for _ in range(num_rows)
    ]


@dataclass
class Run:
    """Steps over all rows at once until the first row has gone through its trace."""

    trace: Trace
    curve: Curve
    seconds_per_draft_token: float = 0.0

    def with_lengths(self, choose: Callable[[int, list[int]], list[int]]) -> float:
        """Tokens per second; `choose(num_steps, positions)` gives each row's draft length."""
        positions = [0] * len(self.trace)
        num_steps, seconds = 0, 0.0
        while max(positions) < NUM_POSITIONS:
            lengths = choose(num_steps, positions)
            seconds += self.curve(len(positions) + sum(lengths))
            seconds += self.seconds_per_draft_token * sum(lengths)
            positions = [
                position + 1 + num_accepted(row[position : position + length])
                for row, position, length in zip(self.trace, positions, lengths, strict=True)
            ]
            num_steps += 1
        return sum(positions) / seconds

    def with_fixed(self, length: int) -> float:
        return self.with_lengths(lambda _, positions: [length] * len(positions))

    def with_controller(self, kind: DraftKind) -> float:
        return self.with_lengths(ControlledLengths(self, kind))


class ControlledLengths:
    """Drives the controller as the drafter does; the engine's part is played by the trace."""

    def __init__(self, run: Run, kind: DraftKind) -> None:
        self._run = run
        self._kind = kind
        self._controller = DraftLengthController(num_speculative_tokens=MAX_LENGTH)
        self._requests = [make_request(str(row)) for row in range(len(run.trace))]
        for num_tokens in MEASURED:
            self._controller.cost.observe(num_tokens, run.curve(num_tokens))
        self._before: tuple[list[int], list[Proposal]] | None = None

    def __call__(self, _num_steps: int, positions: list[int]) -> list[int]:
        self._learn(positions)
        lengths = self._model_lengths() if self._kind == "draft_model" else self._lookup_lengths()
        drafted = lengths if self._kind == "draft_model" else [MAX_LENGTH] * len(lengths)
        self._before = list(positions), [propose(length) for length in drafted]
        num_tokens = len(lengths) + sum(lengths)
        self._controller.cost.observe(
            num_tokens, self._run.curve(num_tokens), num_rows=len(lengths)
        )
        return lengths

    def _lookup_lengths(self) -> list[int]:
        survivals = {
            request.request_id: self._controller.survivals(request, self._kind, propose(MAX_LENGTH))
            for request in self._requests
        }
        lengths = self._controller.lengths(self._requests, survivals)
        return [lengths[request.request_id] for request in self._requests]

    def _model_lengths(self) -> list[int]:
        self._controller.cost.observe_drafting(1, self._run.seconds_per_draft_token)
        lengths = self._controller.model_lengths(self._requests, {})
        return [lengths.get(request.request_id, 0) for request in self._requests]

    def _learn(self, positions: Sequence[int]) -> None:
        if self._before is None:
            return
        rows = zip(self._requests, self._run.trace, *self._before, positions, strict=True)
        for request, row, start, proposal, end in rows:
            emitted = [RIGHT if is_right else WRONG for is_right in row[start:end]]
            self._controller.observe(request, self._kind, proposal, emitted)


def make_request(request_id: str) -> Request:
    message = AddRequest(
        request_id=request_id, prompt_token_ids=[1], sampling_params=SamplingParams(max_tokens=9999)
    )
    return Request.from_message(message, eos_token_ids=(), max_model_len=10_000)


def propose(num_tokens: int) -> Proposal:
    return Proposal((RIGHT,) * num_tokens, (MODEL_CONFIDENCE,) * num_tokens)


def num_accepted(row: Sequence[bool]) -> int:
    return next((n for n, is_right in enumerate(row) if not is_right), len(row))


CURVES = [flat, linear, staircase]
TRACES = [constant, collapsing, bursty, hopeless]


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("accept_prob", TRACES)
def test_lookups_are_cut_as_well_as_by_the_best_fixed_length(accept_prob, curve, num_rows) -> None:
    run = Run(make_trace(accept_prob, num_rows), curve)
    fixed = [run.with_fixed(length) for length in FIXED_LENGTHS]
    controlled = run.with_controller("suffix")
    assert controlled >= 0.97 * max(fixed)
    assert controlled >= 0.98 * fixed[0]


@pytest.mark.parametrize("num_rows", [1, 4, 16])
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("accept_prob", TRACES)
def test_a_draft_model_is_used_as_well_as_with_the_best_fixed_length(
    accept_prob, curve, num_rows
) -> None:
    run = Run(make_trace(accept_prob, num_rows), curve, seconds_per_draft_token=0.001)
    fixed = [run.with_fixed(length) for length in FIXED_LENGTHS]
    controlled = run.with_controller("draft_model")
    assert controlled >= 0.97 * max(fixed)
    assert controlled >= 0.98 * fixed[0]
