"""The answers of /v1/chat/completions. Typed dicts: streams build many of them."""

from typing import Literal

from typing_extensions import TypedDict

from app.api.schemas import PromptLogprobs, SpeculativeDecodingMetrics, Usage


class ChatTopLogprob(TypedDict):
    """`bytes` are the token's own, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatTopLogprob):
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatMessageAnswer(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatDelta(TypedDict, total=False):
    """What a stream adds to the message; the last one of a choice is empty."""

    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict, total=False):
    """A whole answer's has a `message`, a stream's a `delta`."""

    index: int
    message: ChatMessageAnswer
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int]


class ChatChunk(TypedDict, total=False):
    """A whole answer, or one event of a stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs
    metrics: dict[str, SpeculativeDecodingMetrics]
