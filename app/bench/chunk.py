"""What the benchmark reads of the events of a stream; all else in them is passed over."""

from __future__ import annotations

import msgspec


class Choice(msgspec.Struct, frozen=True):
    text: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculativeDecoding(msgspec.Struct, frozen=True):
    """`acceptance_histogram[i]` drafts had i accepted tokens."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: list[int]


class Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: SpeculativeDecoding


class Error(msgspec.Struct, frozen=True):
    message: str


class Chunk(msgspec.Struct, frozen=True):
    """With usage in every chunk; the last one has no choices, but the metrics."""

    choices: list[Choice] = []
    usage: Usage | None = None
    metrics: Metrics | None = None
    error: Error | None = None
