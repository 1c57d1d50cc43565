"""One streamed answer: its text, and when each piece of it came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.bench.bench_error import BenchError
from app.bench.chunk import Chunk, SpeculativeDecoding


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that came at once, `seconds` after the piece before (the first: after the request)."""

    seconds: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`started` and `ended` are of one clock, so that answers of the same time can be joined."""

    text: str
    started: float
    ended: float
    num_tokens: int
    num_cached_tokens: int
    pieces: Sequence[Piece]
    speculation: SpeculativeDecoding

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class AnswerReader:
    """Puts the chunks of one answer together as they come."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._last = started
        self._num_tokens = 0
        self._texts: list[str] = []
        self._pieces: list[Piece] = []
        self._end: Chunk | None = None

    def add(self, chunk: Chunk, now: float) -> None:
        if chunk.error is not None:
            raise BenchError(f"the server gave an answer up: {chunk.error.message}")
        if not chunk.choices:
            self._end = chunk
        elif text := "".join(choice.text for choice in chunk.choices):
            self._add_text(text, chunk, now)

    def _add_text(self, text: str, chunk: Chunk, now: float) -> None:
        """Tokens whose text came later count where it came."""
        num_tokens = self._num_tokens if chunk.usage is None else chunk.usage.completion_tokens
        self._texts.append(text)
        self._pieces.append(Piece(now - self._last, num_tokens - self._num_tokens))
        self._num_tokens, self._last = num_tokens, now

    def finish(self, now: float) -> Answer:
        end = self._end
        if end is None or end.usage is None or end.metrics is None:
            raise BenchError("the answer does not say how it was drafted: is this a Tandem server?")
        return Answer(
            text="".join(self._texts),
            started=self._started,
            ended=now,
            num_tokens=end.usage.completion_tokens,
            num_cached_tokens=end.usage.prompt_tokens_details.cached_tokens,
            pieces=self._pieces,
            speculation=end.metrics.speculative_decoding,
        )
