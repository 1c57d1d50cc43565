"""One text completion: what the client gets, whole or as events of the same shape."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.api.completion_request import CompletionRequest
from app.api.generation_request import StreamOptions
from app.api.schemas import CompletionChoice, CompletionChunk
from app.generation.choice_decoder import ChoiceDelta
from app.generation.generation import Generation
from app.generation.joined_delta import joined_deltas
from app.generation.logprobs import logprobs_arrays


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
        choices = [self._choice(delta) for delta in await joined_deltas(self._generation)]
        chunk = self._chunk(self._best(choices) if self._body.is_ranked else choices)
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

    def _best(self, choices: list[CompletionChoice]) -> list[CompletionChoice]:
        """Of each prompt's candidates the `n` with the best mean logprob, the best one first."""
        num_candidates, generated = self._body.num_candidates, self._generation.choices
        best: list[CompletionChoice] = []
        for start in range(0, len(choices), num_candidates):
            ranked = sorted(
                range(start, start + num_candidates),
                key=lambda index: -generated[index].decoder.mean_logprob,
            )
            best += [choices[index] for index in ranked[: self._body.n]]
        return [{**choice, "index": index} for index, choice in enumerate(best)]

    def _choice(self, delta: ChoiceDelta) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        decoder = self._generation.choices[delta.index].decoder
        if self._body.logprobs is not None:
            choice["logprobs"] = logprobs_arrays(delta.logprobs, decoder.token_name)
        if delta.prompt_logprobs is not None:
            choice["prompt_logprobs"] = delta.prompt_logprobs
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
