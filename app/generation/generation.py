"""The choices of one HTTP request while the engine works on them: deltas out, everything counted.

Knows no HTTP. Each choice is counted once by how it ended, also when its reader goes away.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from app.api.schemas import Usage
from app.dispatch.engine_client import EngineClient
from app.errors import EngineFailedError, RequestTimeoutError
from app.generation.choice_decoder import ChoiceDecoder, ChoiceDelta
from app.generation.request_context import RequestContext
from app.generation.speculation_stats import SpeculationStats
from app.metrics import Metrics
from engine.messages import AddRequest, FinishReason, RequestOutput


@dataclass(slots=True)
class Choice:
    """One engine request and what became of it."""

    request: AddRequest
    decoder: ChoiceDecoder
    last_token_time: float | None = None
    num_cached_tokens: int = 0
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0

    @property
    def counts_prompt(self) -> bool:
        """A prompt counts once, however many choices it has."""
        return self.request.sampling_params.choice_index == 0


class Generation:
    """Runs the choices of one request; `speculation` is about all of them."""

    def __init__(
        self,
        choices: Sequence[Choice],
        *,
        engine_client: EngineClient,
        metrics: Metrics,
        context: RequestContext,
        timeout: float | None = None,
    ) -> None:
        self.choices = choices
        self.speculation = SpeculationStats(engine_client.require_model().num_speculative_tokens)
        self._engine_client = engine_client
        self._metrics = metrics
        self._context = context
        self._timeout = timeout
        self._unfinished = {choice.request.request_id: choice for choice in choices}

    async def deltas(
        self, idle_seconds: float | None = None
    ) -> AsyncGenerator[list[ChoiceDelta], None]:
        """What is new, as soon as it is; nothing when the engine was silent for `idle_seconds`."""
        stream = self._engine_client.generate(
            [choice.request for choice in self.choices], tenant=self._context.tenant
        )
        reason: FinishReason = "abort"
        try:
            while self._unfinished:
                self._check_deadline()
                outputs = await stream.get(self._patience(idle_seconds))
                if not outputs:
                    self._check_deadline()
                changed: dict[str, Choice] = {}
                for output in outputs:
                    choice = self._append(output)
                    if choice is None:
                        continue
                    changed[output.request_id] = choice
                    if choice.decoder.finish_reason is not None:
                        # Unknown to the engine where a stop string ended it.
                        stream.abort(output.request_id)
                yield [choice.decoder.take() for choice in changed.values()]
        except EngineFailedError:
            reason = "error"
            raise
        finally:
            # Nothing here may wait: it also runs while the task is being cancelled.
            stream.close()
            for _ in self._unfinished:
                self._metrics.record_finished(reason, self._num_seconds())

    def usage(self) -> Usage:
        with_prompt = [choice for choice in self.choices if choice.counts_prompt]
        num_prompt_tokens = sum(len(choice.request.prompt_token_ids) for choice in with_prompt)
        num_tokens = sum(choice.decoder.num_tokens for choice in self.choices)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(choice.num_cached_tokens for choice in with_prompt)
            },
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(
                    choice.num_accepted_prediction_tokens for choice in self.choices
                ),
                "rejected_prediction_tokens": sum(
                    choice.num_rejected_prediction_tokens for choice in self.choices
                ),
            },
        }

    def _num_seconds(self) -> float:
        """Since the request arrived."""
        return time.monotonic() - self._context.arrival_time

    def _check_deadline(self) -> None:
        if self._timeout is not None and self._num_seconds() >= self._timeout:
            raise RequestTimeoutError(
                f"The request's timeout of {self._timeout:g} seconds has passed.", param="timeout"
            )

    def _patience(self, idle_seconds: float | None) -> float | None:
        """How long to wait for the engine."""
        if self._timeout is None:
            return idle_seconds
        left = max(self._timeout - self._num_seconds(), 0)
        return left if idle_seconds is None else min(left, idle_seconds)

    def _append(self, output: RequestOutput) -> Choice | None:
        """The choice that the output changed, if it still takes any."""
        choice = self._unfinished.get(output.request_id)
        if choice is None:
            return None
        if output.finish_reason in ("error", "abort"):
            raise EngineFailedError(output.error or "The engine gave this request up.")
        self._record_prompt(choice, output)
        num_tokens = choice.decoder.append(output)
        self._record_tokens(choice, output, num_tokens)
        if choice.decoder.finish_reason is not None:
            del self._unfinished[output.request_id]
            self._metrics.record_finished(choice.decoder.finish_reason, self._num_seconds())
        return choice

    def _record_prompt(self, choice: Choice, output: RequestOutput) -> None:
        if output.queue_seconds is None:
            return
        choice.num_cached_tokens = output.num_cached_tokens or 0
        self._metrics.record_prompt(
            num_tokens=len(choice.request.prompt_token_ids) if choice.counts_prompt else 0,
            num_cached_tokens=choice.num_cached_tokens if choice.counts_prompt else 0,
            queue_seconds=output.queue_seconds,
        )

    def _record_tokens(self, choice: Choice, output: RequestOutput, num_tokens: int) -> None:
        num_accepted_tokens = min(output.num_accepted_tokens, num_tokens)
        self.speculation.record(
            num_draft_tokens=output.num_draft_tokens, num_accepted_tokens=num_accepted_tokens
        )
        self._metrics.record_tokens(
            num_tokens=num_tokens,
            num_draft_tokens=output.num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
        )
        if output.draft_kind == "prediction":
            num_rejected_tokens = output.num_draft_tokens - num_accepted_tokens
            choice.num_accepted_prediction_tokens += num_accepted_tokens
            choice.num_rejected_prediction_tokens += num_rejected_tokens
        if num_tokens:
            self._record_latency(choice, num_tokens)

    def _record_latency(self, choice: Choice, num_tokens: int) -> None:
        now = time.monotonic()
        if choice.last_token_time is None:
            self._metrics.record_first_token(now - self._context.arrival_time)
        else:
            seconds = now - choice.last_token_time
            self._metrics.record_later_tokens(seconds=seconds, num_tokens=num_tokens)
        choice.last_token_time = now
