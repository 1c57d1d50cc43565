"""One generation inside the engine: its tokens, how far they are computed, and when it ends.

It does not know text; a stop string reaches it as an abort.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

from engine.grammar.state import GrammarState
from engine.messages import AddRequest, FinishReason, SamplingParams, TokenLogprobs
from engine.sampling.token_history import TokenHistory


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """The one mutable record of the engine. `token_ids` is the prompt followed by the output.

    The KV of the first `num_computed_tokens` tokens is in the slot. The newest token is never
    computed when it is sampled: it is the input of the next step.
    """

    request_id: str
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...]
    max_num_tokens: int
    num_prompt_tokens: int
    token_ids: list[int]
    history: TokenHistory
    grammar: GrammarState | None = None
    prediction_token_ids: tuple[int, ...] = ()
    cache_salt: str = ""
    num_speculative_tokens: int | None = None
    priority: int = 0
    arrival_order: int = 0
    arrival_time: float = field(default_factory=time.monotonic)
    queue_seconds: float | None = None
    status: RequestStatus = RequestStatus.WAITING
    slot_id: int | None = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_sent_outputs: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @classmethod
    def from_message(
        cls, message: AddRequest, *, eos_token_ids: tuple[int, ...], max_model_len: int
    ) -> Request:
        num_prompt_tokens = len(message.prompt_token_ids)
        max_num_tokens = num_prompt_tokens + message.sampling_params.max_tokens
        return cls(
            request_id=message.request_id,
            sampling_params=message.sampling_params,
            eos_token_ids=eos_token_ids,
            max_num_tokens=min(max_num_tokens, max_model_len),
            num_prompt_tokens=num_prompt_tokens,
            token_ids=[*message.prompt_token_ids, *message.output_token_ids],
            history=TokenHistory(message.prompt_token_ids, message.output_token_ids),
            prediction_token_ids=tuple(message.prediction_token_ids),
            cache_salt=message.cache_salt,
            num_speculative_tokens=message.num_speculative_tokens,
            priority=message.priority,
        )

    @property
    def order(self) -> tuple[int, int]:
        """Requests are served by priority, lower first, then by arrival."""
        return self.priority, self.arrival_order

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """How many tokens may still be emitted."""
        return self.max_num_tokens - len(self.token_ids)

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft that could be of use: the token behind it is emitted as well."""
        return self.num_remaining_tokens - 1

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling_params.num_prompt_logprobs is not None

    def start_grammar(self, fresh: GrammarState) -> None:
        """Follow a grammar, from behind the output so far. Raises GrammarError."""
        grammar = fresh.copy()
        for token_id in self.token_ids[self.num_prompt_tokens :]:
            grammar.append(token_id)
        self.grammar = grammar

    def append(self, token_id: int) -> FinishReason | None:
        """Take the next output token; returns why the request ends with it, if it does.

        Raises GrammarError.
        """
        self.token_ids.append(token_id)
        self.history.append(token_id)
        if self.grammar is not None:
            self.grammar.append(token_id)
        if (
            self.is_stop_token(token_id)
            and self.num_output_tokens > self.sampling_params.min_tokens
        ):
            return "stop"
        if self.grammar is not None and self.grammar.is_finished:
            return "stop"
        return "length" if self.num_remaining_tokens <= 0 else None

    def is_stop_token(self, token_id: int) -> bool:
        if token_id in self.sampling_params.stop_token_ids:
            return True
        return token_id in self.eos_token_ids and not self.sampling_params.ignore_eos
