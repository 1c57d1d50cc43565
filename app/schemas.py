"""The HTTP bodies: what a client may send, checked field by field, and what it gets back.

`null` is a field's default everywhere. Completions are typed dicts: streams build many of them.
"""

import re
from typing import Annotated, Any, TypedDict

import msgspec
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

from app.errors import FieldError, InvalidRequestError, from_validation_error

DEFAULT_MAX_TOKENS = 16
MAX_INT64 = 2**63 - 1
DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")

# Known to OpenAI's or vLLM's clients and not offered, with the values that ask for nothing.
UNSUPPORTED_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json_object": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "priority": (0,),
    "return_tokens_as_token_ids": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "cache_salt": (),
    "logits_processors": ([],),
    "lora_request": (),
    "request_id": (),
    "store": (False,),
    "metadata": ({},),
}


def _described_as(description: str) -> WrapValidator:
    """One message for a union, in place of one for each of its members."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise FieldError(f"It must be {description}.") from None

    return WrapValidator(validate)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class StreamOptions(_Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SpeculativeOptions(_Body):
    num_speculative_tokens: int = Field(ge=0)


class CompletionRequest(_Body):
    """The body of POST /v1/completions."""

    model: str | None = None
    prompt: Annotated[
        str | list[str] | list[int] | list[list[int]],
        _described_as("a string, strings, token ids, or arrays of token ids"),
    ]
    n: int = Field(1, ge=1, le=128)
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=0)
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    top_k: int = Field(0, ge=-1, le=MAX_INT64)
    min_p: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    frequency_penalty: float = Field(0.0, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float = Field(0.0, ge=-2, le=2, allow_inf_nan=False)
    repetition_penalty: float = Field(1.0, gt=0, le=10, allow_inf_nan=False)
    logit_bias: dict[str, float] = {}
    seed: int | None = Field(None, ge=-MAX_INT64 - 1, le=MAX_INT64)
    stop: Annotated[str | list[str], _described_as("a string or an array of strings")] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = Field(None, ge=0)
    echo: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    user: str | None = None
    speculative: Annotated[
        bool | SpeculativeOptions | None,
        _described_as('true, false or {"num_speculative_tokens": k} with k >= 0'),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in data.keys() & UNSUPPORTED_PARAMETERS.keys():
            if data[name] is not None and data[name] not in UNSUPPORTED_PARAMETERS[name]:
                raise FieldError(
                    f"This server does not support '{name}'.",
                    param=name,
                    code="unsupported_parameter",
                )
        return {name: value for name, value in data.items() if name not in UNSUPPORTED_PARAMETERS}

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

    @model_validator(mode="after")
    def check_combinations(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise FieldError("It must be at least 1, or 0 with 'echo'.", param="max_tokens")
        if self.min_tokens > self.max_tokens:
            raise FieldError("It must not be above 'max_tokens'.", param="min_tokens")
        if self.stream_options is not None and not self.stream:
            raise FieldError("It has a meaning with 'stream' only.", param="stream_options")
        return self

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def num_speculative_tokens(self) -> int | None:
        """None lets the engine choose."""
        if isinstance(self.speculative, SpeculativeOptions):
            return self.speculative.num_speculative_tokens
        return 0 if self.speculative is False else None


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Strict JSON: no NaN, no lone surrogates, no bad UTF-8, no endless nesting."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidRequestError("The body is not valid JSON.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise InvalidRequestError("The body must be a JSON object.", code="invalid_json")
    try:
        return CompletionRequest.model_validate(data)
    except ValidationError as error:
        raise from_validation_error(error) from None


class Logprobs(TypedDict):
    """Parallel arrays, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict, total=False):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    prompt_token_ids: list[int]
    token_ids: list[int]


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


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
