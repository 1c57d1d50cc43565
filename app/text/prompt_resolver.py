"""From what a client sends as its prompt to token ids that the model can read."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.completion_request import MAX_NUM_PROMPTS
from app.errors import ContextLengthError, InvalidRequestError
from app.text.prompt import Prompt
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_threads import TokenizerThreads
from engine.messages import EngineReady


class PromptResolver:
    """Tokenises off the event loop; one prompt that is wrong refuses all.

    `param` is the field that errors name.
    """

    def __init__(self, tokenizer: Tokenizer, threads: TokenizerThreads) -> None:
        self._tokenizer = tokenizer
        self._threads = threads

    async def resolve(
        self,
        prompts: Sequence[str | list[int]],
        model: EngineReady,
        *,
        add_special_tokens: bool = True,
        max_num_tokens: int | None = None,
        param: str = "prompt",
    ) -> list[Prompt]:
        """`max_num_tokens` truncates each prompt to its last tokens."""
        if not prompts:
            raise InvalidRequestError("The list of prompts is empty.", param=param)
        if len(prompts) > MAX_NUM_PROMPTS:
            raise InvalidRequestError(f"More than {MAX_NUM_PROMPTS} prompts.", param=param)
        if max_num_tokens is None:
            self._check_lengths(prompts, model, param)

        def tokenize() -> list[Prompt]:
            return [self._tokenize(prompt, add_special_tokens) for prompt in prompts]

        resolved = await self._threads.run(tokenize, num_chars=_num_chars(prompts))
        if max_num_tokens is not None:
            resolved = [prompt.truncated(max_num_tokens, self._tokenizer) for prompt in resolved]
        for prompt in resolved:
            _check(prompt, model, param)
        return resolved

    async def resolve_gap(
        self, prefix: str, suffix: str, model: EngineReady, *, add_special_tokens: bool
    ) -> Prompt:
        """A prompt for the text between the two, as models that fill in the middle read it."""
        fim_token_ids = self._tokenizer.fim_token_ids()
        if fim_token_ids is None:
            raise InvalidRequestError(
                "'suffix' is not supported: the model has no tokens for filling in the middle.",
                param="suffix",
                code="unsupported_parameter",
            )
        texts = [prefix, suffix]
        self._check_lengths(texts, model, "prompt")

        def tokenize() -> list[list[int]]:
            return [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]

        head, tail = await self._threads.run(tokenize, num_chars=_num_chars(texts))
        before, between, behind = fim_token_ids
        bos = self._tokenizer.prefix_token_ids if add_special_tokens else []
        prompt = Prompt([*bos, before, *head, between, *tail, behind])
        _check(prompt, model, "prompt")
        return prompt

    def _check_lengths(
        self, prompts: Sequence[str | list[int]], model: EngineReady, param: str
    ) -> None:
        """Refuses a text that cannot fit before the work of reading it is done."""
        max_chars = model.max_model_len * self._tokenizer.max_chars_per_token
        for prompt in prompts:
            if isinstance(prompt, str) and len(prompt) > max_chars:
                raise ContextLengthError(
                    num_prompt_tokens=len(prompt) // self._tokenizer.max_chars_per_token,
                    max_model_len=model.max_model_len,
                    is_least=True,
                    param=param,
                )

    def _tokenize(self, prompt: str | list[int], add_special_tokens: bool) -> Prompt:
        if not isinstance(prompt, str):
            return Prompt(prompt)
        token_ids = self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        return Prompt(token_ids, prompt, may_have_prefix=add_special_tokens)


def _num_chars(prompts: Sequence[str | list[int]]) -> int:
    return sum(len(prompt) for prompt in prompts if isinstance(prompt, str))


def _check(prompt: Prompt, model: EngineReady, param: str) -> None:
    token_ids = prompt.token_ids
    if not token_ids:
        raise InvalidRequestError("The prompt is empty.", param=param)
    if min(token_ids) < 0 or max(token_ids) >= model.vocab_size:
        raise InvalidRequestError(
            f"Token ids must be from 0 to {model.vocab_size - 1}.",
            param=param,
            code="invalid_token_id",
        )
    if len(token_ids) >= model.max_model_len:
        raise ContextLengthError(
            num_prompt_tokens=len(token_ids), max_model_len=model.max_model_len, param=param
        )
