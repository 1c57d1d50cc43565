"""What speculation did for one request, counted in tokens that the client got."""

from __future__ import annotations

from collections import Counter

from app.api.schemas import SpeculativeDecodingMetrics


class SpeculationStats:
    """Steps without a draft are not counted."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._num_speculative_tokens = num_speculative_tokens
        self._num_steps_by_accepted: Counter[int] = Counter()
        self._num_draft_tokens = 0

    def record(self, *, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        if num_draft_tokens:
            self._num_draft_tokens += num_draft_tokens
            self._num_steps_by_accepted[num_accepted_tokens] += 1

    def summary(self) -> SpeculativeDecodingMetrics:
        histogram = [
            self._num_steps_by_accepted[num] for num in range(self._num_speculative_tokens + 1)
        ]
        num_steps = sum(histogram)
        num_accepted = sum(num * steps for num, steps in enumerate(histogram))
        return {
            "mean_acceptance_length": 1 + num_accepted / max(num_steps, 1),
            "draft_acceptance_rate": num_accepted / max(self._num_draft_tokens, 1),
            "num_spec_steps": num_steps,
            "num_draft_tokens": self._num_draft_tokens,
            "num_accepted_draft_tokens": num_accepted,
            "acceptance_histogram": histogram,
        }
