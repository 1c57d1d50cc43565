"""One chat completion: what the client gets, whole or as events that add to a message."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from app.api.chat_request import ChatRequest
from app.api.chat_schemas import ChatChoice, ChatChunk, ChatDelta, ChatLogprobs, ChatTopLogprob
from app.api.generation_request import StreamOptions
from app.generation.choice_decoder import ChoiceDelta
from app.generation.generation import Generation
from app.generation.joined_delta import joined_deltas
from app.generation.logprobs import LogprobEntry
from app.text.tokenizer import Tokenizer


class ChatCompletion:
    """A generation in the words of OpenAI's chat."""

    def __init__(
        self,
        chat_id: str,
        body: ChatRequest,
        generation: Generation,
        *,
        model: str,
        tokenizer: Tokenizer,
    ) -> None:
        self._id = chat_id
        self._body = body
        self._generation = generation
        self._model = model
        self._tokenizer = tokenizer
        self._created = int(time.time())
        self._begun: set[int] = set()

    async def whole(self) -> ChatChunk:
        """The answer in one piece."""
        deltas = await joined_deltas(self._generation)
        chunk = self._chunk([self._whole_choice(delta) for delta in deltas])
        chunk["object"] = "chat.completion"
        chunk["usage"] = self._generation.usage()
        return self._with_metrics(self._with_prompt(chunk, deltas[0]))

    async def chunks(self, idle_seconds: float) -> AsyncGenerator[ChatChunk | None, None]:
        """The answer in pieces; None stands for `idle_seconds` without any."""
        options = self._body.stream_options or StreamOptions()
        async with aclosing(self._generation.deltas(idle_seconds)) as generated:
            async for changes in generated:
                if not changes:
                    yield None
                for delta in filter(None, changes):
                    for chunk in self._chunks_of(delta):
                        yield self._with_usage(chunk, options)
        if options.include_usage:
            yield self._with_metrics({**self._chunk([]), "usage": self._generation.usage()})

    def _chunks_of(self, delta: ChoiceDelta) -> Iterator[ChatChunk]:
        """The role comes before the first content, the finish reason after the last."""
        index = delta.index
        if index not in self._begun:
            begins = self._chunk([_piece(index, {"role": "assistant", "content": ""})])
            yield begins if self._begun else self._with_prompt(begins, delta)
            self._begun.add(index)
        if delta.text or delta.logprobs or delta.token_ids:
            choice = _piece(index, {"content": delta.text})
            yield self._chunk([self._with_tokens(choice, delta)])
        if delta.finish_reason is not None:
            yield self._chunk([_piece(index, {}, delta.finish_reason)])

    def _whole_choice(self, delta: ChoiceDelta) -> ChatChoice:
        choice: ChatChoice = {
            "index": delta.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        return self._with_tokens(choice, delta)

    def _with_tokens(self, choice: ChatChoice, delta: ChoiceDelta) -> ChatChoice:
        if self._body.logprobs:
            choice["logprobs"] = self._logprobs(delta.logprobs)
        if self._body.return_token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def _with_prompt(self, chunk: ChatChunk, delta: ChoiceDelta) -> ChatChunk:
        """What is said of the prompt, which is the same for all choices."""
        if self._body.return_token_ids:
            chunk["prompt_token_ids"] = self._generation.choices[0].request.prompt_token_ids
        if delta.prompt_logprobs is not None:
            chunk["prompt_logprobs"] = delta.prompt_logprobs
        return chunk

    def _logprobs(self, entries: Sequence[LogprobEntry]) -> ChatLogprobs:
        return {
            "content": [
                {
                    **self._token(entry.token_id, entry.logprob or 0.0),
                    "top_logprobs": [self._token(*top) for top in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> ChatTopLogprob:
        name = self._generation.choices[0].decoder.token_name(token_id)
        token_bytes = list(self._tokenizer.token_bytes(token_id))
        return {"token": name, "logprob": logprob, "bytes": token_bytes}

    def _chunk(self, choices: list[ChatChoice]) -> ChatChunk:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _with_usage(self, chunk: ChatChunk, options: StreamOptions) -> ChatChunk:
        if options.continuous_usage_stats:
            chunk["usage"] = self._generation.usage()
        elif options.include_usage:
            chunk["usage"] = None
        return chunk

    def _with_metrics(self, chunk: ChatChunk) -> ChatChunk:
        """Speculation is reported where it is clear which choice it was for."""
        if len(self._generation.choices) == 1:
            chunk["metrics"] = {"speculative_decoding": self._generation.speculation.summary()}
        return chunk


def _piece(index: int, delta: ChatDelta, finish_reason: str | None = None) -> ChatChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
