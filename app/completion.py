"""One text completion: what the client gets, whole or as events of the same shape."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.choice_decoder import ChoiceDelta
from app.generation import Generation
from app.logprobs import LogprobEntry, logprobs_arrays
from app.schemas import CompletionChoice, CompletionChunk, CompletionRequest, StreamOptions


class Completion:
    """A generation in OpenAI's words."""

    def __init__(
        self, completion_id: str, body: CompletionRequest, generation: Generation, *, model: str
    ) -> None:
        self._id = completion_id
        self._body = body
        self._generation = generation
        self._model = model
        self._created = int(time.time())
        self._prompts_told: set[int] = set()

    async def whole(self) -> CompletionChunk:
        """The answer in one piece."""
        deltas: list[list[ChoiceDelta]] = [[] for _ in self._generation.choices]
        async with aclosing(self._generation.deltas()) as generated:
            async for changes in generated:
                for delta in changes:
                    deltas[delta.index].append(delta)
        chunk = self._chunk([self._choice(_joined(pieces)) for pieces in deltas])
        return self._with_metrics({**chunk, "usage": self._generation.usage()})

    async def chunks(self, idle_seconds: float) -> AsyncGenerator[CompletionChunk | None, None]:
        """The answer in pieces; None stands for `idle_seconds` without any."""
        options = self._body.stream_options or StreamOptions()
        async with aclosing(self._generation.deltas(idle_seconds)) as generated:
            async for changes in generated:
                if not changes:
                    yield None
                for delta in filter(None, changes):
                    yield self._with_usage(self._chunk([self._choice(delta)]), options)
        if options.include_usage:
            yield self._with_metrics({**self._chunk([]), "usage": self._generation.usage()})

    def _choice(self, delta: ChoiceDelta) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if self._body.logprobs is not None:
            choice["logprobs"] = logprobs_arrays(delta.logprobs)
        if self._body.return_token_ids:
            if delta.index not in self._prompts_told:
                self._prompts_told.add(delta.index)
                request = self._generation.choices[delta.index].request
                choice["prompt_token_ids"] = request.prompt_token_ids
            choice["token_ids"] = delta.token_ids
        return choice

    def _chunk(self, choices: list[CompletionChoice]) -> CompletionChunk:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _with_usage(self, chunk: CompletionChunk, options: StreamOptions) -> CompletionChunk:
        if options.continuous_usage_stats:
            chunk["usage"] = self._generation.usage()
        elif options.include_usage:
            chunk["usage"] = None
        return chunk

    def _with_metrics(self, chunk: CompletionChunk) -> CompletionChunk:
        """Speculation is reported where it is clear which choice it was for."""
        if len(self._generation.choices) == 1:
            chunk["metrics"] = {"speculative_decoding": self._generation.speculation.summary()}
        return chunk


def new_completion_id() -> str:
    return f"cmpl-{uuid.uuid4().hex}"


def _joined(deltas: list[ChoiceDelta]) -> ChoiceDelta:
    entries: list[LogprobEntry] = [entry for delta in deltas for entry in delta.logprobs]
    return ChoiceDelta(
        index=deltas[-1].index,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=entries,
        finish_reason=deltas[-1].finish_reason,
    )
