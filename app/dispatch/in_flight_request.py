"""One engine request from its arrival to its last output, over any number of engines.

It knows what was given out already, and so how to ask another engine for the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from app.dispatch.output_stream import OutputStream
from engine.messages import AddRequest, RequestOutput


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """`is_reported`: what comes with the first output was given out.

    `max_tokens` is below what was asked for where an engine is to do a part only.
    """

    request: AddRequest
    stream: OutputStream
    tenant: str
    output_token_ids: list[int] = field(default_factory=list)
    arrival_time: float = field(default_factory=time.monotonic)
    sent_time: float = 0.0
    max_tokens: int = 0
    is_reported: bool = False

    def send(self, *, max_new_tokens: int | None = None) -> AddRequest:
        """The message for an engine that has not seen the request: what is left to generate."""
        self.sent_time = time.monotonic()
        self.max_tokens = self.request.sampling_params.max_tokens
        if max_new_tokens is not None:
            self.max_tokens = min(self.max_tokens, len(self.output_token_ids) + max_new_tokens)
        return self._message()

    def take(self, output: RequestOutput) -> RequestOutput:
        """What the client gets of an output of the engine: as from one engine without a pause."""
        self.output_token_ids += output.new_token_ids
        if output.queue_seconds is not None:
            output = self._report(output, output.queue_seconds)
        if output.finish_reason == "length" and self._has_done_its_part:
            output = replace(output, finish_reason=None)
        return output

    @property
    def _has_done_its_part(self) -> bool:
        """More is to come: neither all that was asked for nor the context's end is reached."""
        num_tokens = len(self.output_token_ids)
        return self.max_tokens <= num_tokens < self.request.sampling_params.max_tokens

    def _message(self) -> AddRequest:
        params = self.request.sampling_params
        if self.max_tokens < params.max_tokens:
            params = replace(params, max_tokens=self.max_tokens)
        if self.is_reported:
            params = replace(params, num_prompt_logprobs=None)
        return replace(self.request, output_token_ids=self.output_token_ids, sampling_params=params)

    def _report(self, output: RequestOutput, queue_seconds: float) -> RequestOutput:
        """What an engine says once is given out once, and waiting began at the arrival."""
        if self.is_reported:
            return replace(output, queue_seconds=None, num_cached_tokens=None)
        self.is_reported = True
        return replace(output, queue_seconds=self.sent_time - self.arrival_time + queue_seconds)
