"""What the answers to prompts of one kind, from one side, add up to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.bench.answer import Answer


@dataclass(slots=True)
class Measurement:
    """All times are in seconds; what cannot be told is None."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.answers)

    @property
    def tokens_per_second(self) -> float | None:
        """Of one reader: waiting and reading the prompt are part of the time."""
        return _ratio(self.num_tokens, sum(answer.seconds for answer in self.answers))

    @property
    def num_spec_steps(self) -> int:
        return sum(answer.speculation.num_spec_steps for answer in self.answers)

    @property
    def num_draft_tokens(self) -> int:
        return sum(answer.speculation.num_draft_tokens for answer in self.answers)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(answer.speculation.num_accepted_draft_tokens for answer in self.answers)

    @property
    def acceptance_rate(self) -> float | None:
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens of a step that had a draft, the target's own included."""
        accepted = _ratio(self.num_accepted_tokens, self.num_spec_steps)
        return None if accepted is None else 1 + accepted

    @property
    def mean_draft_length(self) -> float | None:
        return _ratio(self.num_draft_tokens, self.num_spec_steps)

    @property
    def acceptance_per_position(self) -> list[float]:
        """Which part of the drafts had at least 1, 2, ... accepted tokens; up to where none had.

        Example: of four drafts two had 0, one 1 and one 2 accepted tokens: [0.5, 0.25].
        """
        histograms = [answer.speculation.acceptance_histogram for answer in self.answers]
        length = max(map(len, histograms), default=0)
        sums = [sum(h[i] for h in histograms if i < len(h)) for i in range(length)]
        at_least = [sum(sums[position:]) for position in range(1, length)]
        return [num / self.num_spec_steps for num in at_least if num]

    def time_to_first_token(self, percentile: int) -> float | None:
        return _percentile([a.pieces[0].seconds for a in self.answers if a.pieces], percentile)

    def inter_token_latency(self, percentile: int) -> float | None:
        """The tokens of a piece share the time since the piece before."""
        seconds = [
            piece.seconds / piece.num_tokens
            for answer in self.answers
            for piece in answer.pieces[1:]
            for _ in range(piece.num_tokens)
        ]
        return _percentile(seconds, percentile)

    def pause(self, percentile: int) -> float | None:
        """How long the text stood still, whatever came then."""
        pauses = [piece.seconds for answer in self.answers for piece in answer.pieces[1:]]
        return _percentile(pauses, percentile)

    def summary(self) -> dict[str, Any]:
        return {
            "num_requests": len(self.answers),
            "num_tokens": self.num_tokens,
            "num_cached_prompt_tokens": sum(a.num_cached_tokens for a in self.answers),
            "tokens_per_second": self.tokens_per_second,
            "time_to_first_token_seconds_p50": self.time_to_first_token(50),
            "time_to_first_token_seconds_p99": self.time_to_first_token(99),
            "inter_token_latency_seconds_p50": self.inter_token_latency(50),
            "inter_token_latency_seconds_p99": self.inter_token_latency(99),
            "pause_seconds_p50": self.pause(50),
            "pause_seconds_p99": self.pause(99),
            "num_drafts": self.num_spec_steps,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "mean_draft_length": self.mean_draft_length,
            "acceptance_per_position": self.acceptance_per_position,
        }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _percentile(values: Sequence[float], percentile: int) -> float | None:
    """The smallest value that so many percent of the values do not exceed."""
    if not values:
        return None
    return sorted(values)[math.ceil(percentile / 100 * len(values)) - 1]
