"""Drives an engine core in process: requests in, finished generations out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.core import EngineCore
from engine.messages import AddRequest, RequestOutput, SamplingParams, StepOutput, TokenLogprobs


@dataclass
class Generation:
    """Everything that the engine said about one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reasons: list[str] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None

    def take(self, output: RequestOutput) -> None:
        self.token_ids += output.new_token_ids
        self.logprobs += output.logprobs or []
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.num_draft_tokens += output.num_draft_tokens
        self.num_accepted_tokens += output.num_accepted_tokens
        self.num_cached_tokens += output.num_cached_tokens or 0
        self.error = output.error or self.error
        if output.finish_reason is not None:
            self.finish_reasons.append(output.finish_reason)


def add_request(
    request_id: str,
    prompt_token_ids: Iterable[int],
    *,
    num_speculative_tokens: int | None = None,
    output_token_ids: Iterable[int] = (),
    prediction_token_ids: Iterable[int] = (),
    cache_salt: str = "",
    priority: int = 0,
    **params: Any,
) -> AddRequest:
    """A greedy request unless the parameters say otherwise."""
    params = {"temperature": 0.0, "max_tokens": 16, **params}
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt_token_ids),
        output_token_ids=list(output_token_ids),
        num_speculative_tokens=num_speculative_tokens,
        prediction_token_ids=list(prediction_token_ids),
        cache_salt=cache_salt,
        priority=priority,
        sampling_params=SamplingParams(**params),
    )


def run(core: EngineCore, messages: Iterable[AddRequest]) -> dict[str, Generation]:
    """Run the requests together to their ends."""
    generations: dict[str, Generation] = {}
    for message in messages:
        core.add_request(message)
        generations[message.request_id] = Generation()
    while core.has_work:
        take(generations, core.step())
    return generations


def take(generations: dict[str, Generation], step: StepOutput) -> None:
    for output in step.outputs:
        generations.setdefault(output.request_id, Generation()).take(output)


def run_one(core: EngineCore, message: AddRequest) -> Generation:
    return run(core, [message])[message.request_id]
