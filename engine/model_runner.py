"""Carries out a scheduled step: drafts, runs the target, and verifies what it says.

It does not decide who runs, and it keeps nothing between steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends.base import Backend, ForwardRow
from engine.messages import TokenLogprobs
from engine.request import Request
from engine.sampling.logits import Logits
from engine.sampling.logprobs import token_logprobs
from engine.scheduler import ScheduledRequest, SchedulerOutput
from engine.spec_decode.drafter import Drafter
from engine.spec_decode.proposer import Draft
from engine.spec_decode.verifier import VerifiedTokens, verify


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What a step did for one request; `verified` is None in the middle of a prompt."""

    request: Request
    num_computed_tokens: int
    verified: VerifiedTokens | None
    draft: Draft | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    results: tuple[RequestResult, ...]
    num_tokens: int
    draft_seconds: float


class ModelRunner:
    """Runs the target on a backend, with a drafter before it in decode steps."""

    def __init__(self, backend: Backend, drafter: Drafter) -> None:
        self._backend = backend
        self._drafter = drafter

    def execute(self, output: SchedulerOutput) -> StepResult:
        for copy in output.copies:
            self._backend.copy_prefix(copy.source_slot, copy.target_slot, copy.num_tokens)
        if output.phase == "prefill":
            return self._prefill(output.scheduled)
        return self._decode([scheduled.request for scheduled in output.scheduled])

    def _prefill(self, scheduled: Sequence[ScheduledRequest]) -> StepResult:
        rows = [_prefill_row(s.request, s.num_new_tokens) for s in scheduled]
        logits = self._forward(rows)
        results = []
        for item, row, row_logits in zip(scheduled, rows, logits, strict=True):
            request = item.request
            _take_prompt_logprobs(request, row, row_logits)
            is_last_chunk = row.end_position == request.num_tokens
            verified = verify(request, (), row_logits[-1:]) if is_last_chunk else None
            results.append(RequestResult(request, row.end_position, verified))
        return StepResult(tuple(results), _num_tokens(rows), 0.0)

    def _decode(self, requests: Sequence[Request]) -> StepResult:
        requests = sorted(requests, key=lambda request: request.slot_id or 0)
        started = time.perf_counter()
        drafts = self._drafter.draft(requests)
        drafted = time.perf_counter()
        rows = [_decode_row(request, drafts.get(request.request_id)) for request in requests]
        logits = self._forward(rows)
        self._drafter.controller.cost.observe(
            _num_tokens(rows), time.perf_counter() - drafted, num_rows=len(rows)
        )
        results = [
            self._verify(request, drafts.get(request.request_id), row_logits)
            for request, row_logits in zip(requests, logits, strict=True)
        ]
        return StepResult(tuple(results), _num_tokens(rows), drafted - started)

    def _verify(self, request: Request, draft: Draft | None, logits: Logits) -> RequestResult:
        num_known_tokens = request.num_tokens
        draft_token_ids = draft.token_ids if draft else ()
        verified = verify(request, draft_token_ids, logits)
        self._drafter.observe(request, verified.token_ids)
        num_computed_tokens = num_known_tokens + verified.num_accepted_tokens
        return RequestResult(request, num_computed_tokens, verified, draft)

    def _forward(self, rows: Sequence[ForwardRow]) -> list[Logits]:
        """The wanted logits of each row: `[num_logits, vocab_size]`."""
        logits = self._backend.forward(tuple(rows))
        return [part.numpy() for part in logits.split([row.num_logits for row in rows])]


def _num_tokens(rows: Sequence[ForwardRow]) -> int:
    return sum(len(row.token_ids) for row in rows)


def _prefill_row(request: Request, num_new_tokens: int) -> ForwardRow:
    start = request.num_computed_tokens
    token_ids = tuple(request.token_ids[start : start + num_new_tokens])
    is_last_chunk = start + num_new_tokens == request.num_tokens
    num_logits = num_new_tokens if request.wants_prompt_logprobs else int(is_last_chunk)
    return _row(request, start, token_ids, num_logits)


def _decode_row(request: Request, draft: Draft | None) -> ForwardRow:
    token_ids = (request.token_ids[-1], *(draft.token_ids if draft else ()))
    return _row(request, request.num_tokens - 1, token_ids, len(token_ids))


def _row(request: Request, start: int, token_ids: tuple[int, ...], num_logits: int) -> ForwardRow:
    assert request.slot_id is not None
    return ForwardRow(request.slot_id, start, token_ids, num_logits)


def _take_prompt_logprobs(request: Request, row: ForwardRow, logits: Logits) -> None:
    """The logits at a position tell how likely the next prompt token was."""
    num_top = request.sampling_params.num_prompt_logprobs
    if num_top is None:
        return
    next_token_ids = request.token_ids[row.start_position + 1 : request.num_prompt_tokens]
    found: list[TokenLogprobs] = [
        token_logprobs(position_logits, token_id, num_top)
        for position_logits, token_id in zip(logits, next_token_ids, strict=False)
    ]
    request.prompt_logprobs.extend(found)
