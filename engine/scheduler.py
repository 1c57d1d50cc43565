"""Which requests run in the next step: waiting queue, slots, bounds between prefill and decode.

A step is either prefill or decode. There is no phase in a request: its computed tokens chase the
tokens known. More than one token behind is prefill work; one behind, the newest, is decode work.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass

from engine.messages import StepPhase
from engine.request import Request, RequestStatus
from engine.slots import SlotTable, common_prefix_length

_MIN_COPIED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """`num_new_tokens` of the request's uncomputed tokens are to be computed."""

    request: Request
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixCopy:
    """KV to copy between slots before the step."""

    source_slot: int
    target_slot: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    phase: StepPhase
    scheduled: tuple[ScheduledRequest, ...]
    copies: tuple[PrefixCopy, ...] = ()


class Scheduler:
    """Continuous batching over slots, first by priority, then by arrival.

    While anything decodes, at most `max_consecutive_prefills` prefill steps run between two decode
    steps; while anything is to be prefilled, at most `max_consecutive_decodes` the other way round.
    """

    def __init__(
        self,
        slots: SlotTable,
        *,
        max_num_batched_tokens: int,
        max_consecutive_prefills: int = 1,
        max_consecutive_decodes: int = 1,
        enable_prefix_caching: bool = True,
    ) -> None:
        self._slots = slots
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_consecutive = {
            "prefill": max_consecutive_prefills,
            "decode": max_consecutive_decodes,
        }
        self._enable_prefix_caching = enable_prefix_caching
        self._waiting: list[tuple[tuple[int, int], Request]] = []
        self._running: list[Request] = []
        self._num_added = 0
        self._last_phase: StepPhase = "decode"
        self._num_consecutive = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_running_tokens(self) -> int:
        return sum(request.num_computed_tokens for request in self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add_request(self, request: Request) -> None:
        self._num_added += 1
        request.arrival_order = self._num_added
        heapq.heappush(self._waiting, (request.order, request))

    def finish_request(self, request: Request) -> None:
        """Take a request out, wherever it is; its slot keeps the computed tokens for reuse."""
        if request.status is RequestStatus.WAITING:
            self._waiting = [entry for entry in self._waiting if entry[1] is not request]
            heapq.heapify(self._waiting)
        elif request.status is RequestStatus.RUNNING:
            self._running.remove(request)
            assert request.slot_id is not None
            self._slots.free(request.slot_id)
        request.status = RequestStatus.FINISHED

    def schedule(self) -> SchedulerOutput | None:
        """The next step, or None when there is nothing to do."""
        self._admit()
        copies = tuple(copy for r in self._running for copy in self._reuse_prefix(r))
        prefills = [r for r in self._running if r.num_uncomputed_tokens > 1]
        decodes = [r for r in self._running if r.num_uncomputed_tokens == 1]
        phase = self._next_phase(can_prefill=bool(prefills), can_decode=bool(decodes))
        if phase is None:
            return None
        self._num_consecutive = self._num_consecutive + 1 if phase == self._last_phase else 1
        self._last_phase = phase
        if phase == "prefill":
            return SchedulerOutput(phase, tuple(self._chunks(prefills)), copies)
        return SchedulerOutput(phase, tuple(ScheduledRequest(r, 1) for r in decodes), copies)

    def update_computed(self, request: Request, num_computed_tokens: int) -> None:
        """Note how far a request's KV is valid: less than was run, after a rejection."""
        assert request.slot_id is not None
        assert num_computed_tokens <= request.num_tokens
        request.num_computed_tokens = num_computed_tokens
        self._slots.set_tokens(request.slot_id, request.token_ids, num_computed_tokens)

    def _admit(self) -> None:
        while self._waiting and self._slots.has_idle:
            _, request = heapq.heappop(self._waiting)
            cached = self._slots.allocate(
                request.token_ids, cache_salt=request.cache_salt, reuse=self._may_reuse(request)
            )
            request.slot_id = cached.slot_id
            request.num_computed_tokens = request.num_cached_tokens = cached.num_tokens
            request.queue_seconds = time.monotonic() - request.arrival_time
            request.status = RequestStatus.RUNNING
            self._running.append(request)

    def _may_reuse(self, request: Request) -> bool:
        """Prompt logprobs need the logits of every prompt position: nothing can be reused."""
        return self._enable_prefix_caching and not request.wants_prompt_logprobs

    def _can_still_reuse(self, request: Request) -> bool:
        """Until a request's first chunk runs, another slot may come to hold more of its prompt."""
        is_started = request.num_computed_tokens > request.num_cached_tokens
        return not is_started and request.num_uncomputed_tokens > 1 and self._may_reuse(request)

    def _reuse_prefix(self, request: Request) -> Iterator[PrefixCopy]:
        if not self._can_still_reuse(request):
            return
        best = self._slots.longest_prefix(request.token_ids, request.cache_salt)
        gain = best.num_tokens - request.num_computed_tokens
        if gain >= _MIN_COPIED_TOKENS and not self._is_led(request, best.num_tokens):
            assert request.slot_id is not None
            request.num_cached_tokens = best.num_tokens
            self.update_computed(request, best.num_tokens)
            yield PrefixCopy(best.slot_id, request.slot_id, best.num_tokens)

    def _is_led(self, request: Request, num_held_tokens: int) -> bool:
        """Whether a request ahead will compute tokens that this one can copy instead."""
        return any(
            leader.num_uncomputed_tokens > 1
            and leader.cache_salt == request.cache_salt
            and leader.order < request.order
            and common_prefix_length(leader.token_ids, request.token_ids)
            >= num_held_tokens + 2 * _MIN_COPIED_TOKENS
            for leader in self._running
        )

    def _next_phase(self, *, can_prefill: bool, can_decode: bool) -> StepPhase | None:
        if not can_prefill and not can_decode:
            return None
        if not can_prefill or not can_decode:
            return "prefill" if can_prefill else "decode"
        if self._num_consecutive < self._max_consecutive[self._last_phase]:
            return self._last_phase
        return "decode" if self._last_phase == "prefill" else "prefill"

    def _chunks(self, requests: list[Request]) -> Iterator[ScheduledRequest]:
        budget = self._max_num_batched_tokens
        for request in sorted(requests, key=lambda request: request.order):
            if self._can_still_reuse(request) and self._is_led(
                request, request.num_computed_tokens
            ):
                continue
            num_new_tokens = min(request.num_uncomputed_tokens, budget)
            if num_new_tokens:
                budget -= num_new_tokens
                yield ScheduledRequest(request, num_new_tokens)
