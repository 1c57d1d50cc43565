"""One prompt of a request, as text and as token ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.detokenizer import create_detokenizer
from app.errors import ContextLengthError, InvalidRequestError
from app.tokenizer import Tokenizer
from engine.messages import EngineReady

MAX_NUM_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what the client sent, if it sent text."""

    token_ids: list[int]
    text: str | None = None

    def echo_text(self, tokenizer: Tokenizer) -> str:
        """The prompt as `echo` returns it; a BOS that no client wrote is left out."""
        if self.text is not None:
            return self.text
        token_ids = self.token_ids[self._num_prefix_tokens(tokenizer) :]
        return tokenizer.decode(token_ids, skip_special_tokens=False)

    def text_offsets(self, tokenizer: Tokenizer) -> list[int]:
        """The character in which each token begins."""
        num_prefix_tokens = self._num_prefix_tokens(tokenizer)
        offsets = [0] * num_prefix_tokens
        detokenizer = create_detokenizer(tokenizer, skip_special_tokens=False)
        for token_id in self.token_ids[num_prefix_tokens:]:
            detokenizer.append(token_id)
            offsets.append(detokenizer.token_offset)
        # A normalizer can make the tokens' text longer than what was sent.
        num_chars = len(self.echo_text(tokenizer))
        return [min(offset, num_chars) for offset in offsets]

    def _num_prefix_tokens(self, tokenizer: Tokenizer) -> int:
        prefix = tokenizer.prefix_token_ids
        return len(prefix) if self.token_ids[: len(prefix)] == prefix else 0


async def resolve_prompts(
    prompt: str | list[str] | list[int] | list[list[int]],
    tokenizer: Tokenizer,
    model: EngineReady,
) -> list[Prompt]:
    """All prompts of a request, tokenised off the event loop; one that is wrong refuses all."""
    prompts = await asyncio.to_thread(_tokenize, prompt, tokenizer)
    for each in prompts:
        _check(each, model)
    return prompts


def _tokenize(
    prompt: str | list[str] | list[int] | list[list[int]], tokenizer: Tokenizer
) -> list[Prompt]:
    items = [prompt] if isinstance(prompt, str) or _is_token_ids(prompt) else prompt
    if not items:
        raise InvalidRequestError("The list of prompts is empty.", param="prompt")
    if len(items) > MAX_NUM_PROMPTS:
        raise InvalidRequestError(f"More than {MAX_NUM_PROMPTS} prompts.", param="prompt")
    return [
        Prompt(tokenizer.encode(item), item) if isinstance(item, str) else Prompt(item)  # type: ignore[arg-type]
        for item in items
    ]


def _is_token_ids(prompt: str | list[str] | list[int] | list[list[int]]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _check(prompt: Prompt, model: EngineReady) -> None:
    token_ids = prompt.token_ids
    if not token_ids:
        raise InvalidRequestError("The prompt is empty.", param="prompt")
    if min(token_ids) < 0 or max(token_ids) >= model.vocab_size:
        raise InvalidRequestError(
            f"Token ids must be from 0 to {model.vocab_size - 1}.",
            param="prompt",
            code="invalid_token_id",
        )
    if len(token_ids) >= model.max_model_len:
        raise ContextLengthError(
            num_prompt_tokens=len(token_ids), max_model_len=model.max_model_len
        )
