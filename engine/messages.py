"""The wire between the front end and the engine process: every message, both directions.

msgspec structs, MessagePack-encoded. No tensors, no pickle, no text except error messages.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]
StepPhase = Literal["prefill", "decode"]
DraftKind = Literal["prediction", "grammar", "suffix", "draft_model", "synthetic"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen for one request. Ranges are checked at the HTTP edge.

    `temperature` below 1e-5 means greedy; `top_k` 0 means off; `num_logprobs` None means none and
    0 means the chosen token only. `allowed_token_ids` None allows all; `bad_words` are sequences of
    tokens of which the last is forbidden where the others stand before it, in the output.
    `grammar` is what the output must match, in llguidance's own JSON form; EOS is allowed where it
    is complete, and ends the output.
    """

    max_tokens: int
    seed: int = 0
    choice_index: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: list[int] | None = None
    bad_words: list[list[int]] = []
    grammar: str | None = None
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a generation. `output_token_ids` are tokens already emitted, when it is a replay.

    `num_speculative_tokens`: None lets the controller choose, 0 turns drafting off, k pins it.
    `prediction_token_ids` are the client's own guess of the output. KV is shared only between
    requests of the same `cache_salt`. Smaller `priority` runs first.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    output_token_ids: list[int] = []
    num_speculative_tokens: int | None = None
    prediction_token_ids: list[int] = []
    cache_salt: str = ""
    priority: int = 0


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop a generation at whatever stage it is. Unknown ids are ignored."""

    request_id: str


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Leave the loop after the step that is running."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The target's log-probabilities at one position: the token's own, and the most likely ones.

    `top` is sorted from the most likely down, ties by token id; it need not hold the token itself,
    whose place in that order, from 1, is `rank`.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    rank: int


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one request.

    The last one of a request has a `finish_reason`, and there is exactly one such. Of
    `new_token_ids`, the first `num_accepted_tokens` were drafted, in a draft of `draft_kind`.
    `prompt_logprobs` come once, complete, before or with the first token: one entry per prompt
    token after the first. `queue_seconds` and `num_cached_tokens` come with the first output.
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    draft_kind: DraftKind | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    queue_seconds: float | None = None
    num_cached_tokens: int | None = None


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state after a step. `phase` is None where no model ran: aborts were answered."""

    phase: StepPhase | None = None
    step_seconds: float = 0.0
    draft_seconds: float = 0.0
    num_rows: int = 0
    num_tokens: int = 0
    num_running: int
    num_waiting: int
    kv_cache_usage_ratio: float


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that one engine step has to say."""

    outputs: list[RequestOutput]
    stats: StepStats


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine has loaded and warmed the model and takes requests."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_speculative_tokens: int
    speculative_method: str
    device: str
    dtype: str
    eos_token_ids: list[int]
    load_seconds: float


class EngineDead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine cannot go on; the message is for a person."""

    message: str


# Beside the socket lies a file for the front end to read when the engine has died: who was in the
# step that ran, as a list of request ids behind its length.
STEP_FILE_NAME = "step"
STEP_FILE_HEADER = struct.Struct("<Q")


class GrammarSource(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar as a client wrote it, for the process that checks it: JSON, one line each."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str


class GrammarVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar in the engine's form, or what is wrong with it, in words for the client."""

    grammar: str = ""
    error: str | None = None


EngineRequest = AddRequest | AbortRequest | Shutdown
EngineMessage = EngineReady | StepOutput | EngineDead
