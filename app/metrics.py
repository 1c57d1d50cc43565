"""Everything that is counted, under Tandem's names and under vLLM's for the tools that read those.

Rates are left to the reader: tokens per second and acceptance are quotients of counters.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.token_histogram import TokenHistogram
from engine.messages import FinishReason, StepPhase, StepStats

FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
PHASES: tuple[StepPhase, ...] = get_args(StepPhase)
Rejection = Literal["queue_full", "queue_timeout"]
REJECTIONS: tuple[Rejection, ...] = get_args(Rejection)

# fmt: off
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
REQUEST_BUCKETS = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
STEP_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)
# fmt: on


class Metrics:
    """One registry, whose series all exist, at 0, from the start."""

    def __init__(self, *, model_name: str, max_num_seqs: int, num_speculative_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._num_queued = 0
        self._num_waiting_in_engine = 0
        self._pending = _TokenCounts()
        self.num_running = 0
        self._create_engine_series()
        self._create_request_series()
        self._create_spec_decode_series(num_speculative_tokens)

    @property
    def num_waiting(self) -> int:
        return self._num_queued + self._num_waiting_in_engine

    def render(self) -> bytes:
        """The Prometheus text format."""
        self._settle()
        return generate_latest(self._registry)

    def record_engine(self, *, up: bool, ready: bool) -> None:
        self._engine_up.set(up)
        self._engine_ready.set(ready)

    def record_step(self, stats: StepStats) -> None:
        if stats.phase is not None:
            self._step_seconds[stats.phase].observe(stats.step_seconds)
        self._draft_seconds.inc(stats.draft_seconds)
        self._record_load(stats.num_running, stats.num_waiting, stats.kv_cache_usage_ratio)

    def record_idle(self) -> None:
        """No request is in the engine, since it has ended."""
        self._record_load(0, 0, 0.0)

    def record_queue(self, num_queued: int) -> None:
        """Requests that wait in the front end; more may wait in the engine."""
        if num_queued != self._num_queued:
            self._num_queued = num_queued
            self._num_waiting.set(self.num_waiting)

    def record_restart(self) -> None:
        self._restarts.inc(1)

    def record_rejection(self, reason: Rejection) -> None:
        self._rejections[reason].inc(1)

    def record_prompt(
        self, *, num_tokens: int, num_cached_tokens: int, queue_seconds: float
    ) -> None:
        """A prompt was read, for the first of its choices or for a later one (0 tokens)."""
        self._prompt_tokens.inc(num_tokens)
        self._cached_prompt_tokens.inc(num_cached_tokens)
        self._queue_seconds.observe(queue_seconds)

    def record_first_token(self, seconds: float) -> None:
        self._first_token_seconds.observe(seconds)

    def record_later_tokens(self, *, seconds: float, num_tokens: int) -> None:
        """Tokens of one step share its time: the sum is the time, the count the tokens."""
        self._inter_token_seconds.observe(seconds / num_tokens, num_tokens)

    def record_tokens(
        self, *, num_tokens: int, num_draft_tokens: int, num_accepted_tokens: int
    ) -> None:
        """Tokens that one step gave to a client; none behind a stop."""
        self._pending.num_tokens += num_tokens
        if num_draft_tokens:
            self._pending.num_drafts += 1
            self._pending.num_draft_tokens += num_draft_tokens
            self._pending.num_drafts_by_accepted[num_accepted_tokens] += 1

    def record_finished(self, finish_reason: FinishReason, seconds: float) -> None:
        self._requests[finish_reason].inc(1)
        self._e2e_seconds.observe(seconds)

    def _settle(self) -> None:
        """Move what was counted since the last look into the series."""
        counts, self._pending = self._pending, _TokenCounts()
        self._generation_tokens.inc(counts.num_tokens)
        self._drafts.inc(counts.num_drafts)
        self._draft_tokens.inc(counts.num_draft_tokens)
        for num_accepted, num_drafts in counts.num_drafts_by_accepted.items():
            self._accepted_tokens.inc(num_accepted * num_drafts)
            for series in self._accepted_per_position[:num_accepted]:
                series.inc(num_drafts)

    def _record_load(self, num_running: int, num_waiting: int, kv_cache_usage: float) -> None:
        self.num_running = num_running
        self._num_waiting_in_engine = num_waiting
        self._num_running.set(num_running)
        self._num_waiting.set(self.num_waiting)
        self._slots_in_use.set(num_running / self._max_num_seqs)
        self._kv_cache_usage.set(kv_cache_usage)

    def _create_engine_series(self) -> None:
        self._engine_up = self._gauge("engine_up", "Whether the engine process runs.")
        self._engine_ready = self._gauge("engine_ready", "Whether the engine takes requests.")
        self._restarts = self._series(
            Counter, "engine_restarts_total", "Engine processes started to replace a dead one."
        )
        self._num_running = self._gauge(
            "num_requests_running", "Requests that hold a slot.", alias="num_requests_running"
        )
        self._num_waiting = self._gauge(
            "num_requests_waiting", "Requests that wait for a slot.", alias="num_requests_waiting"
        )
        self._slots_in_use = self._gauge("slots_in_use_ratio", "Slots in use, 0 to 1.")
        self._kv_cache_usage = self._gauge(
            "kv_cache_usage_ratio", "KV cache in use, 0 to 1.", alias="kv_cache_usage_perc"
        )
        self._step_seconds = self._labelled(
            Histogram,
            "engine_step_seconds",
            "Duration of one engine step.",
            label="phase",
            values=PHASES,
            buckets=STEP_BUCKETS,
        )

    def _create_request_series(self) -> None:
        self._requests = self._labelled(
            Counter,
            "requests_total",
            "Requests that ended, by finish reason.",
            label="finish_reason",
            values=FINISH_REASONS,
            alias="request_success_total",
            alias_label="finished_reason",
        )
        self._rejections = self._labelled(
            Counter,
            "admission_rejections_total",
            "Calls that were not served because too many others were.",
            label="reason",
            values=REJECTIONS,
        )
        self._prompt_tokens = self._counter("prompt_tokens_total", "Prompt tokens read.")
        self._cached_prompt_tokens = self._series(
            Counter, "cached_prompt_tokens_total", "Prompt tokens that were still in a slot."
        )
        self._generation_tokens = self._counter("generation_tokens_total", "Tokens generated.")
        self._first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        name = "inter_token_latency_seconds"
        self._inter_token_seconds = TokenHistogram(
            {f"tandem_{name}": {}, f"vllm:{name}": self._labels},
            "Between two tokens of a request.",
            TOKEN_BUCKETS,
        )
        self._registry.register(self._inter_token_seconds)
        self._e2e_seconds = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", REQUEST_BUCKETS
        )
        self._queue_seconds = self._histogram(
            "request_queue_time_seconds", "From arrival to a slot.", REQUEST_BUCKETS
        )

    def _create_spec_decode_series(self, num_speculative_tokens: int) -> None:
        self._drafts = self._counter(
            "spec_decode_drafts_total",
            "Verified drafts of at least one token.",
            alias="spec_decode_num_drafts_total",
        )
        self._draft_tokens = self._counter(
            "spec_decode_draft_tokens_total",
            "Tokens that were drafted.",
            alias="spec_decode_num_draft_tokens_total",
        )
        self._accepted_tokens = self._counter(
            "spec_decode_accepted_tokens_total",
            "Drafted tokens that were emitted.",
            alias="spec_decode_num_accepted_tokens_total",
        )
        per_position = self._labelled(
            Counter,
            "spec_decode_accepted_tokens_per_position_total",
            "Drafted tokens that were emitted, by position in the draft.",
            label="position",
            values=[str(position) for position in range(num_speculative_tokens)],
            alias="spec_decode_num_accepted_tokens_per_pos_total",
            alias_label="position",
        )
        self._accepted_per_position = list(per_position.values())
        self._draft_seconds = self._series(
            Counter, "spec_decode_draft_seconds_total", "Time spent on drafting."
        )

    def _gauge(self, name: str, text: str, *, alias: str | None = None) -> _Series:
        return self._series(Gauge, name, text, alias=alias)

    def _counter(self, name: str, text: str, *, alias: str | None = None) -> _Series:
        return self._series(Counter, name, text, alias=alias or name)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> _Series:
        return self._series(Histogram, name, text, alias=name, buckets=buckets)

    def _series(
        self, kind: Any, name: str, text: str, *, alias: str | None = None, **options: Any
    ) -> _Series:
        series = [kind(f"tandem_{name}", text, registry=self._registry, **options)]
        if alias is not None:
            vllm = kind(f"vllm:{alias}", text, [*self._labels], registry=self._registry, **options)
            series.append(vllm.labels(**self._labels))
        return _Series(series)

    def _labelled(
        self,
        kind: Any,
        name: str,
        text: str,
        *,
        label: str,
        values: Sequence[str],
        alias: str | None = None,
        alias_label: str = "",
        **options: Any,
    ) -> dict[str, _Series]:
        """One series per value of the label."""
        ours = kind(f"tandem_{name}", text, [label], registry=self._registry, **options)
        series = {value: [ours.labels(value)] for value in values}
        if alias is not None:
            labels = [*self._labels, alias_label]
            vllm = kind(f"vllm:{alias}", text, labels, registry=self._registry, **options)
            for value in values:
                series[value].append(vllm.labels(**self._labels, **{alias_label: value}))
        return {value: _Series(names) for value, names in series.items()}


@dataclass(slots=True)
class _TokenCounts:
    """What steps add to the counters, which are too slow for every token."""

    num_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_drafts_by_accepted: Counts[int] = field(default_factory=Counts)


class _Series:
    """One quantity under each of its names."""

    def __init__(self, series: Sequence[Any]) -> None:
        self._all = series

    def set(self, value: float) -> None:
        for series in self._all:
            series.set(value)

    def inc(self, amount: float) -> None:
        for series in self._all:
            series.inc(amount)

    def observe(self, value: float) -> None:
        for series in self._all:
            series.observe(value)
