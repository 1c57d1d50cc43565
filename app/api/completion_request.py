"""The body of POST /v1/completions, checked field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from app.api.generation_request import UNSUPPORTED_PARAMETERS, GenerationRequest
from app.errors import FieldError

DEFAULT_MAX_TOKENS = 16
MAX_NUM_PROMPTS = 1024
MAX_BEST_OF = 20


def check_prompt(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    """What pydantic would check, in a hundredth of its time: a prompt may have a million tokens."""
    if isinstance(value, str):
        return value
    kinds = set(map(type, value)) if isinstance(value, list) else {None}
    if kinds <= {list} and len(value) > MAX_NUM_PROMPTS:
        raise FieldError(f"It has more than {MAX_NUM_PROMPTS} prompts.")
    if kinds <= {str} or kinds == {int}:
        return value
    if kinds == {list} and all(set(map(type, item)) <= {int} for item in value):
        return value
    raise FieldError("It must be a string, strings, token ids, or arrays of token ids.")


class CompletionRequest(GenerationRequest):
    prompt: Annotated[str | list[str] | list[int] | list[list[int]], WrapValidator(check_prompt)]
    suffix: str | None = None
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=0)
    best_of: int | None = Field(None, ge=1, le=MAX_BEST_OF)
    logprobs: int | None = Field(None, ge=0)
    echo: bool = False
    add_special_tokens: bool = True

    @classmethod
    def unsupported_parameters(cls) -> dict[str, tuple[Any, ...]]:
        return UNSUPPORTED_PARAMETERS

    @model_validator(mode="after")
    def check_completion(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise FieldError("It must be at least 1, or 0 with 'echo'.", param="max_tokens")
        if self.best_of is not None and self.best_of < self.n:
            raise FieldError("It must not be below 'n'.", param="best_of")
        if self.stream and self.num_candidates > self.n:
            raise FieldError("It cannot be above 'n' in a stream.", param="best_of")
        if self.suffix:
            self._check_suffix()
        return self

    def _check_suffix(self) -> None:
        if self.echo:
            raise FieldError("It cannot be used with 'suffix'.", param="echo")
        if self.truncate_prompt_tokens is not None:
            raise FieldError("It cannot be used with 'suffix'.", param="truncate_prompt_tokens")
        if not isinstance(self.prompt, str):
            raise FieldError("It needs a prompt that is a string.", param="suffix")

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Each of the prompts; there may be none."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str | list[int]]", self.prompt)

    @property
    def max_output_tokens(self) -> int:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def logprobs_param(self) -> str:
        return "logprobs"

    @property
    def num_prompt_logprobs(self) -> int | None:
        """As many as either field asks for."""
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((num for num in wanted if num is not None), default=None)

    @property
    def num_candidates(self) -> int:
        return self.n if self.best_of is None else self.best_of
