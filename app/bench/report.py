"""The result of a benchmark, as text for a terminal and as data for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.level import Level
from app.bench.measurement import Measurement
from app.bench.prompt import ALL_KINDS
from app.bench.side import Side
from app.bench.table import format_table, milliseconds, number, percent


@dataclass(frozen=True, slots=True)
class Report:
    """The first side is what the others are compared with."""

    model: str
    sides: Sequence[Side]
    levels: Sequence[Level]

    @property
    def side_names(self) -> list[str]:
        return [side.name for side in self.sides]

    def text(self) -> str:
        parts = []
        for level in self.levels:
            requests = "request" if level.concurrency == 1 else "requests"
            parts.append(f"{level.concurrency} {requests} at a time, tokens/s of each:")
            parts.append(self._speed_table(level))
            parts.append(self._detail_table(level))
        if any(level.concurrency > 1 for level in self.levels):
            parts += ["All requests together, tokens/s:", self._total_table()]
        parts.append(self._verdict())
        return "\n\n".join(parts)

    def data(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "sides": {side.name: dict(side.fields) for side in self.sides},
            "same_bytes": True,
            "levels": [level.summary(self.side_names) for level in self.levels],
        }

    def _speed_table(self, level: Level) -> str:
        rows = []
        for kind in level.kinds:
            measured = [level.measurement(kind, name) for name in self.side_names]
            rows.append([kind, *_speeds([each.tokens_per_second for each in measured])])
        return format_table(["prompts", *self._speed_header()], rows, num_names=1)

    def _total_table(self) -> str:
        rows = []
        for level in self.levels:
            totals = [level.total_tokens_per_second(name) for name in self.side_names]
            rows.append([str(level.concurrency), *_speeds(totals)])
        return format_table(["at a time", *self._speed_header()], rows, num_names=1)

    def _speed_header(self) -> list[str]:
        first, *others = self.side_names
        return [first, *(column for name in others for column in (name, "ratio"))]

    def _detail_table(self, level: Level) -> str:
        header = ["prompts", "side", "TTFT ms", "ITL p50", "ITL p99", "pause p50", "pause p99"]
        header += ["accepted", "acceptance length", "draft length"]
        rows = [
            [kind, name, *_details(level.measurement(kind, name))]
            for kind in level.kinds
            for name in self.side_names
        ]
        return format_table(header, rows, num_names=2)

    def _verdict(self) -> str:
        num_answers = sum(
            len(level.measurement(ALL_KINDS, name).answers)
            for level in self.levels
            for name in self.side_names
        )
        return f"All sides wrote the same bytes, in all {num_answers} answers."


def _speeds(speeds: Sequence[float | None]) -> list[str]:
    """Each behind the first with its ratio to the first."""
    first, *others = speeds
    cells = [number(first)]
    for speed in others:
        cells += [number(speed), number(speed / first if speed and first else None, 2)]
    return cells


def _details(measurement: Measurement) -> list[str]:
    return [
        milliseconds(measurement.time_to_first_token(50)),
        milliseconds(measurement.inter_token_latency(50)),
        milliseconds(measurement.inter_token_latency(99)),
        milliseconds(measurement.pause(50)),
        milliseconds(measurement.pause(99)),
        percent(measurement.acceptance_rate),
        number(measurement.mean_acceptance_length, 2),
        number(measurement.mean_draft_length, 2),
    ]
