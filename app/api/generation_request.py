"""What completions and chat have in common: how tokens are chosen, when to stop, what to return.

`null` is a field's default everywhere, and a field that is not known is refused by name.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from app.errors import FieldError

MAX_INT64 = 2**63 - 1
DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
# A request id becomes a part of header values, log lines and answers.
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:\-]{1,128}$"
MAX_TIMEOUT_SECONDS = 86400
# Each key that is not known is an error of its own, of which the first is told.
MAX_NUM_KEYS = 256
MAX_NUM_BAD_WORDS = 1024
# Of any array or object but the prompt, which has limits of its own.
MAX_NUM_ITEMS = 2**18

# Known to OpenAI's or vLLM's clients and not offered, with the values that ask for nothing.
UNSUPPORTED_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json_object": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "lora_request": (),
    "store": (False,),
    "metadata": ({},),
}


def described_as(description: str) -> WrapValidator:
    """One message for a union, in place of one for each of its members."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise FieldError(f"It must be {description}.") from None

    return WrapValidator(validate)


class Body(BaseModel):
    """A JSON object whose nulls are defaults and whose keys are all known."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_NUM_KEYS:
            raise FieldError("It has too many keys.")
        return {name: value for name, value in data.items() if value is not None}


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SpeculativeOptions(Body):
    num_speculative_tokens: int = Field(ge=0)


class TextPart(Body):
    """A part of a message or a prediction; text is the only kind that the models here read."""

    type: Literal["text"]
    text: str


Text = Annotated[
    str | list[TextPart], described_as('a string or an array of {"type": "text", "text": ...}')
]


def joined_text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Prediction(Body):
    """OpenAI's Predicted Outputs: what the client thinks that the output will be."""

    type: Literal["content"] = "content"
    content: Text


class JsonSchemaFormat(Body):
    name: str = Field("", max_length=64)
    description: str = ""
    json_schema: dict[str, Any] | bool = Field(alias="schema")
    strict: bool = True


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise FieldError("'json_schema' belongs to the type 'json_schema', and to no other.")
        return self


class StructuredOutputs(Body):
    """vLLM's name for the same thing; exactly one of these."""

    json_schema: Annotated[
        dict[str, Any] | bool | str | None, described_as("a schema, also as a string")
    ] = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)
    grammar: str | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def check_one(self) -> StructuredOutputs:
        if len(self.model_fields_set) != 1:
            raise FieldError("Give one of 'json', 'regex', 'choice', 'grammar', 'json_object'.")
        if self.choice is not None and "" in self.choice:
            raise FieldError("A choice must not be empty.")
        return self


class GenerationRequest(Body):
    """The fields that /v1/completions and /v1/chat/completions share."""

    model: str | None = None
    n: int = Field(1, ge=1, le=128)
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    top_k: int = Field(0, ge=-1, le=MAX_INT64)
    min_p: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    frequency_penalty: float = Field(0.0, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float = Field(0.0, ge=-2, le=2, allow_inf_nan=False)
    repetition_penalty: float = Field(1.0, gt=0, le=10, allow_inf_nan=False)
    logit_bias: dict[str, float] = {}
    allowed_token_ids: list[int] | None = Field(None, min_length=1)
    bad_words: list[str] = Field([], max_length=MAX_NUM_BAD_WORDS)
    seed: int | None = Field(None, ge=-MAX_INT64 - 1, le=MAX_INT64)
    stop: Annotated[str | list[str], described_as("a string or an array of strings")] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prediction: Prediction | None = None
    speculative: Annotated[
        bool | SpeculativeOptions | None,
        described_as('true, false or {"num_speculative_tokens": k} with k >= 0'),
    ] = None
    prompt_logprobs: int | None = Field(None, ge=0)
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(0, ge=-MAX_INT64 - 1, le=MAX_INT64)
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT_SECONDS, allow_inf_nan=False)
    request_id: str | None = Field(None, pattern=REQUEST_ID_PATTERN)
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        unsupported = cls.unsupported_parameters()
        for name in data.keys() & unsupported.keys():
            if data[name] is not None and data[name] not in unsupported[name]:
                raise FieldError(
                    f"This server does not support '{name}'.",
                    param=name,
                    code="unsupported_parameter",
                )
        return {name: value for name, value in data.items() if name not in unsupported}

    @model_validator(mode="before")
    @classmethod
    def refuse_oversize(cls, data: Any) -> Any:
        """Before any time is spent on the items."""
        for name, value in data.items() if isinstance(data, dict) else ():
            if name != "prompt" and isinstance(value, list | dict) and len(value) > MAX_NUM_ITEMS:
                raise FieldError(f"It has more than {MAX_NUM_ITEMS} items.", param=name)
        return data

    @classmethod
    def unsupported_parameters(cls) -> dict[str, tuple[Any, ...]]:
        """Fields that are refused by name, except with a value that asks for nothing."""
        return UNSUPPORTED_PARAMETERS

    @field_validator("logit_bias")
    @classmethod
    def check_logit_bias(cls, logit_bias: dict[str, float]) -> dict[str, float]:
        for token_id, bias in logit_bias.items():
            if not DECIMAL.fullmatch(token_id):
                raise FieldError("The keys must be token ids, as decimal numbers.")
            if not -100 <= bias <= 100:
                raise FieldError("The values must be from -100 to 100.")
        return logit_bias

    @field_validator("stop")
    @classmethod
    def check_stop(cls, stop: str | list[str]) -> list[str]:
        stop = [stop] if isinstance(stop, str) else stop
        if "" in stop:
            raise FieldError("A stop string must not be empty.")
        return stop

    @field_validator("bad_words")
    @classmethod
    def check_bad_words(cls, bad_words: list[str]) -> list[str]:
        if "" in bad_words:
            raise FieldError("A bad word must not be empty.")
        return bad_words

    @model_validator(mode="after")
    def check_combinations(self) -> GenerationRequest:
        wanted = self.max_output_tokens
        if wanted is not None and self.min_tokens > wanted:
            raise FieldError("It must not be above 'max_tokens'.", param="min_tokens")
        if self.stream_options is not None and not self.stream:
            raise FieldError("It has a meaning with 'stream' only.", param="stream_options")
        if self.truncate_prompt_tokens == 0:
            raise FieldError("It must be at least 1, or -1.", param="truncate_prompt_tokens")
        if self.structured_outputs is not None and self.response_format is not None:
            raise FieldError(
                "Give 'response_format' or 'structured_outputs', not both.",
                param="structured_outputs",
            )
        return self

    @property
    def max_output_tokens(self) -> int | None:
        """The client's limit; None is all that the context has room for."""
        raise NotImplementedError

    @property
    def num_logprobs(self) -> int | None:
        """None is none, 0 the chosen token's only."""
        raise NotImplementedError

    @property
    def logprobs_param(self) -> str:
        """The field that says how many logprobs are returned for each token."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    @property
    def num_candidates(self) -> int:
        """How many choices are generated for each prompt; the best `n` are returned."""
        return self.n

    @property
    def is_ranked(self) -> bool:
        """Whether the logprobs of the candidates decide which of them are returned."""
        return self.num_candidates > self.n

    def max_prompt_tokens(self, max_model_len: int) -> int | None:
        """What each prompt is truncated to, if it is longer; None is not at all."""
        if self.truncate_prompt_tokens != -1:
            return self.truncate_prompt_tokens
        return max(1, max_model_len - max(1, self.max_output_tokens or 1))

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def num_speculative_tokens(self) -> int | None:
        """None lets the engine choose."""
        if isinstance(self.speculative, SpeculativeOptions):
            return self.speculative.num_speculative_tokens
        return 0 if self.speculative is False else None
