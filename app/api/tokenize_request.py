"""The bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from pydantic import Field, model_validator

from app.api.chat_request import ChatMessage, ChatTemplateOptions
from app.api.generation_request import Body
from app.errors import FieldError

# A text of so many characters takes about 1 GB of memory while it is tokenised.
MAX_TEXT_CHARS = 4 * 2**20
MAX_NUM_TOKENS = 500_000


class TokenizeRequest(ChatTemplateOptions):
    """A text, or messages that the chat template makes one of.

    `add_special_tokens` is true for a text, and false for messages, whose template writes them.
    """

    model: str | None = None
    prompt: str | None = Field(None, max_length=MAX_TEXT_CHARS)
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def check_source(self) -> TokenizeRequest:
        if self.prompt is None and self.messages is None:
            raise FieldError("Give it, or 'messages'.", param="prompt", code="missing_parameter")
        if self.prompt is not None and self.messages is not None:
            raise FieldError("Give 'prompt' or 'messages', not both.", param="messages")
        options = self.model_fields_set & ChatTemplateOptions.model_fields.keys()
        if self.prompt is not None and options:
            raise FieldError("It has a meaning with 'messages' only.", param=min(options))
        return self

    @property
    def adds_special_tokens(self) -> bool:
        if self.add_special_tokens is None:
            return self.messages is None
        return self.add_special_tokens


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[int] = Field(max_length=MAX_NUM_TOKENS)
