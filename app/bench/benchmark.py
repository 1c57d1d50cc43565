"""Runs all prompts on all sides, in turns: whatever slows the machine down meets every side.

A server that has answered a prompt drafts from that answer, and need not read the prompt again. So
each request has a `cache_salt` of its own: the prefix cache and the lookup of drafts reuse nothing
across salts. What stays shared is what was learned of speeds and rates, not of text.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from app.bench.answer import Answer
from app.bench.bench_error import BenchError
from app.bench.client import Client
from app.bench.level import Level
from app.bench.prompt import Prompt
from app.bench.side import Side

# Long enough to show the server what its steps cost.
WARM_UP = Prompt("warm-up", "The quick brown fox jumps.\n" * 3, max_tokens=64, id="warm-up")
NUM_CHARS_SHOWN = 30


@dataclass(frozen=True, slots=True)
class _FirstText:
    side: str
    text: str


@dataclass(frozen=True, slots=True)
class _Turn:
    """One batch of prompts on one side; the sides of a batch follow one another."""

    side: Side
    repetition: int
    prompts: Sequence[Prompt]


class Benchmark:
    """Sends `concurrency` requests at a time; the next ones when all of these are answered."""

    def __init__(
        self,
        client: Client,
        executor: Executor,
        *,
        prompts: Sequence[Prompt],
        sides: Sequence[Side],
        repeat: int = 1,
        temperature: float = 0.0,
    ) -> None:
        self._client = client
        self._executor = executor
        self._prompts = prompts
        self._sides = sides
        self._repeat = repeat
        self._temperature = temperature
        self._first_texts: dict[tuple[Prompt, int], _FirstText] = {}

    def run(self, concurrency: int) -> Level:
        """BenchError when a prompt's text is not what it was before, on whatever side and level."""
        level = Level(concurrency)
        turns = list(self._turns(concurrency))
        for side in self._sides:
            self._answers(_Turn(side, 0, [WARM_UP] * concurrency))
        with tqdm(
            total=len(turns) * concurrency,
            desc=f"{concurrency} at a time",
            unit="request",
            disable=None,
        ) as bar:
            for turn in turns:
                answers = self._answers(turn, bar)
                for prompt, answer in zip(turn.prompts, answers, strict=True):
                    self._check(prompt, turn, answer)
                level.add_batch(turn.side.name, turn.prompts, answers)
        return level

    def _turns(self, concurrency: int) -> Iterator[_Turn]:
        """Another side is the first each time, and for the same prompts in each repetition."""
        for repetition in range(self._repeat):
            for number, prompts in enumerate(self._batches(concurrency)):
                first = (number + repetition) % len(self._sides)
                for side in (*self._sides[first:], *self._sides[:first]):
                    yield _Turn(side, repetition, prompts)

    def _batches(self, concurrency: int) -> Iterator[list[Prompt]]:
        """Each prompt once; the last batch is filled up from the beginning."""
        num_prompts = len(self._prompts)
        for start in range(0, num_prompts, concurrency):
            indexes = range(start, start + concurrency)
            yield [self._prompts[index % num_prompts] for index in indexes]

    def _answers(self, turn: _Turn, bar: tqdm[Any] | None = None) -> list[Answer]:
        futures = [self._executor.submit(self._answer, prompt, turn) for prompt in turn.prompts]
        for future in as_completed(futures):
            future.result()
            if bar is not None:
                bar.update()
        return [future.result() for future in futures]

    def _answer(self, prompt: Prompt, turn: _Turn) -> Answer:
        try:
            return self._client.complete(self._body(prompt, turn))
        except BenchError as error:
            raise type(error)(f"prompt {prompt.name} on {turn.side.name!r}: {error}") from error

    def _body(self, prompt: Prompt, turn: _Turn) -> dict[str, Any]:
        return {
            "prompt": prompt.prompt,
            "max_tokens": prompt.max_tokens,
            "temperature": self._temperature,
            "seed": turn.repetition,
            "cache_salt": secrets.token_hex(16),
            **turn.side.fields,
        }

    def _check(self, prompt: Prompt, turn: _Turn, answer: Answer) -> None:
        mine = _FirstText(turn.side.name, answer.text)
        first = self._first_texts.setdefault((prompt, turn.repetition), mine)
        if first.text != mine.text:
            difference = _difference(first, mine)
            raise BenchError(f"the bytes differ at prompt {prompt.name}: {difference}")


def _difference(first: _FirstText, second: _FirstText) -> str:
    """Example: from character 3 on 'off' wrote 'def' and 'on' wrote 'xyz'."""
    pairs = zip(first.text, second.text, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    start = min(len(first.text), len(second.text)) if same is None else same
    a, b = (each.text[start : start + NUM_CHARS_SHOWN] for each in (first, second))
    return f"from character {start} on {first.side!r} wrote {a!r} and {second.side!r} wrote {b!r}"
