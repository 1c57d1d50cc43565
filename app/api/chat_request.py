"""The body of POST /v1/chat/completions, checked field by field."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from app.api.generation_request import UNSUPPORTED_PARAMETERS, Body, GenerationRequest, TextPart
from app.errors import FieldError

MAX_TOP_LOGPROBS = 20
OTHER_PARTS = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "audio"}
    | {"video_url", "video", "input_file", "file", "refusal"}
)


class ChatMessage(Body):
    """`content` may be missing from an assistant's message only, where it stands for no text.

    `parsed` is what OpenAI's client adds to an answer; it may come back with it, and is not read.
    """

    role: str = Field(min_length=1, max_length=64)
    content: str | list[TextPart] = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] = []
    annotations: list[Any] = []
    parsed: Any = None

    @model_validator(mode="before")
    @classmethod
    def check_presence(cls, data: Any) -> Any:
        has_content = isinstance(data, dict) and data.get("content") is not None
        if isinstance(data, dict) and not has_content and data.get("role") != "assistant":
            raise FieldError("A message has no 'content'.", code="missing_parameter")
        return data

    @field_validator("content", mode="before")
    @classmethod
    def check_content(cls, content: Any) -> Any:
        if not isinstance(content, str | list) or content == []:
            raise FieldError("A message's content must be a string, or a list of text parts.")
        for part in [] if isinstance(content, str) else content:
            _check_part(part)
        return content

    @field_validator("tool_calls")
    @classmethod
    def check_tool_calls(cls, tool_calls: list[Any]) -> list[Any]:
        if tool_calls:
            raise FieldError("Tool calls are not supported.", code="unsupported_parameter")
        return tool_calls

    @property
    def template_fields(self) -> dict[str, Any]:
        """What the chat template gets; parts become a list of texts."""
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        content = self.content
        return {
            "role": self.role,
            "content": content if isinstance(content, str) else [part.text for part in content],
            **{name: value for name, value in optional.items() if value is not None},
        }

    @property
    def num_chars(self) -> int:
        content = self.content
        return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)


class ChatTemplateOptions(Body):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def check_end(self) -> ChatTemplateOptions:
        if self.continue_final_message and self.add_generation_prompt:
            raise FieldError(
                "It cannot be used with 'continue_final_message'.", param="add_generation_prompt"
            )
        return self

    @property
    def adds_generation_prompt(self) -> bool:
        return not self.continue_final_message and self.add_generation_prompt is not False


class ChatRequest(ChatTemplateOptions, GenerationRequest):
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_special_tokens: bool = False

    @classmethod
    def unsupported_parameters(cls) -> dict[str, tuple[Any, ...]]:
        return UNSUPPORTED_PARAMETERS | {
            "tools": ([],),
            "tool_choice": ("none", "auto"),
            "parallel_tool_calls": (True, False),
            "functions": ([],),
            "function_call": ("none", "auto"),
            "modalities": (["text"],),
            "audio": (),
            "reasoning_effort": ("none",),
            "web_search_options": (),
            "service_tier": ("auto", "default"),
            "verbosity": ("medium",),
            "chat_template": (),
            "documents": ([],),
            "echo": (False,),
        }

    @model_validator(mode="after")
    def check_chat(self) -> ChatRequest:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise FieldError("It is not what 'max_completion_tokens' says.", param="max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise FieldError("It has a meaning with 'logprobs' only.", param="top_logprobs")
        return self

    @property
    def max_output_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def logprobs_param(self) -> str:
        return "top_logprobs"


def _check_part(part: Any) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in OTHER_PARTS:
        raise FieldError(
            f"The model reads text only, and a part has the type '{kind}'.",
            code="unsupported_parameter",
        )
    if kind != "text" or not isinstance(part.get("text"), str):
        raise FieldError('A part of a message must be {"type": "text", "text": ...}.')
