"""The HTTP answers. Typed dicts: streams build many of them."""

from pydantic import BaseModel
from typing_extensions import TypedDict


class Logprobs(TypedDict):
    """Parallel arrays, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """One token that could stand at a prompt's position; ranks count from 1."""

    logprob: float
    rank: int
    decoded_token: str


# One entry per prompt token, by token id; the first has none.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(TypedDict, total=False):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    prompt_logprobs: PromptLogprobs
    prompt_token_ids: list[int]
    token_ids: list[int]


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class SpeculativeDecodingMetrics(TypedDict):
    """What drafting did for one choice; `acceptance_histogram[i]`: steps that accepted i tokens."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: list[int]


class CompletionChunk(TypedDict, total=False):
    """A whole answer, or one event of a stream: both have the same shape."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None
    metrics: dict[str, SpeculativeDecodingMetrics]


class ModelCard(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "tandem"
    root: str
    max_model_len: int


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard]
