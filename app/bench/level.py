"""All that was measured with the same number of requests at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.bench.answer import Answer
from app.bench.measurement import Measurement
from app.bench.prompt import ALL_KINDS, Prompt


@dataclass(slots=True)
class Level:
    """By kind of prompt and name of side; `ALL_KINDS` is a kind, the last one."""

    concurrency: int
    _measurements: dict[tuple[str, str], Measurement] = field(
        default_factory=lambda: defaultdict(Measurement)
    )
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add_batch(self, side: str, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> None:
        """Answers that were asked for at the same time."""
        for prompt, answer in zip(prompts, answers, strict=True):
            for kind in (prompt.kind, ALL_KINDS):
                self._measurements[kind, side].answers.append(answer)
        started = min(answer.started for answer in answers)
        self._seconds[side] += max(answer.ended for answer in answers) - started

    @property
    def kinds(self) -> list[str]:
        kinds = dict.fromkeys(kind for kind, _ in self._measurements if kind != ALL_KINDS)
        return [*kinds, ALL_KINDS]

    def measurement(self, kind: str, side: str) -> Measurement:
        return self._measurements[kind, side]

    def total_tokens_per_second(self, side: str) -> float | None:
        """Of all requests that ran at a time together."""
        seconds = self._seconds[side]
        return self._measurements[ALL_KINDS, side].num_tokens / seconds if seconds else None

    def summary(self, sides: Sequence[str]) -> dict[str, Any]:
        return {
            "concurrency": self.concurrency,
            "total_tokens_per_second": {s: self.total_tokens_per_second(s) for s in sides},
            "kinds": {
                kind: {side: self.measurement(kind, side).summary() for side in sides}
                for kind in self.kinds
            },
        }
