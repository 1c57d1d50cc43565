"""How long drafts should be: the length with the most expected tokens per second.

Two things are measured: how likely a drafted token is accepted (per request and kind of draft, with
the kind's average as the start), and how long a step with so many tokens takes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.messages import DraftKind
from engine.request import Request

_DECAY = 0.9
_PRIOR_WEIGHT = 2.0
_EXPLORE_EVERY = 16
_EXPLORE_LENGTH = 2
_COST_SMOOTHING = 0.1


Counts = int | npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


class AcceptanceRate:
    """A moving estimate of how likely a drafted token is accepted, given that those before were."""

    def __init__(self, accepted: float = 0.0, tried: float = 0.0) -> None:
        self._accepted = accepted
        self._tried = tried

    def observe(self, *, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Tokens behind the first rejected one were never tried."""
        was_rejected = num_accepted_tokens < num_draft_tokens
        self._accepted = _DECAY * self._accepted + num_accepted_tokens
        self._tried = _DECAY * self._tried + num_accepted_tokens + was_rejected

    def estimate(self, prior: float) -> float:
        weight = _PRIOR_WEIGHT
        return (self._accepted + prior * weight) / (self._tried + weight)


class StepCost:
    """Seconds of a target step by its number of tokens, and of one draft-model token."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._curve: tuple[list[int], list[float]] | tuple[()] = ()
        self._seconds_per_draft_token = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        known = self._seconds.get(num_tokens, seconds)
        # One slow step (a busy machine) must not look like the price of its shape.
        seconds = min(seconds, 2 * known)
        self._seconds[num_tokens] = known + _COST_SMOOTHING * (seconds - known)
        self._curve = self._draw_curve()

    def observe_drafting(self, num_tokens: int, seconds: float) -> None:
        per_token = seconds / num_tokens
        known = self._seconds_per_draft_token or per_token
        self._seconds_per_draft_token = known + _COST_SMOOTHING * (per_token - known)

    def seconds(self, num_tokens: Counts, num_draft_tokens: Counts = 0) -> Seconds:
        """Interpolated between the shapes that were seen; the nearest one outside of them."""
        if not self._curve:
            return np.ones_like(num_tokens, dtype=np.float64)
        drafting = np.multiply(num_draft_tokens, self._seconds_per_draft_token)
        return np.interp(num_tokens, *self._curve) + drafting

    def _draw_curve(self) -> tuple[list[int], list[float]]:
        """A larger step was never cheaper: a slow first reading of a shape does not stand."""
        shapes = sorted(self._seconds)
        falling = itertools.accumulate((self._seconds[n] for n in reversed(shapes)), min)
        return shapes, list(falling)[::-1]


@dataclass(slots=True)
class _RequestState:
    rates: dict[DraftKind, AcceptanceRate]
    num_steps_without_draft: int = 0


class DraftLengthController:
    """Chooses the longest useful draft for each request and step."""

    def __init__(self, *, num_speculative_tokens: int) -> None:
        self.cost = StepCost()
        self._max_length = num_speculative_tokens
        self._kind_rates: dict[DraftKind, AcceptanceRate] = {}
        self._states: dict[str, _RequestState] = {}

    def max_draft_tokens(self, request: Request, kind: DraftKind, *, num_rows: int) -> int:
        """0 where drafting does not pay. `num_rows` requests share the step."""
        useful = min(request.max_draft_tokens, self._max_length)
        if request.num_speculative_tokens is not None:
            return max(0, min(useful, request.num_speculative_tokens))
        best = self._best_length(self._rate(request, kind), kind, num_rows=num_rows)
        if best == 0 and self._state(request).num_steps_without_draft >= _EXPLORE_EVERY:
            best = _EXPLORE_LENGTH
        return max(0, min(useful, best))

    def observe(
        self,
        request: Request,
        kind: DraftKind | None,
        *,
        num_draft_tokens: int,
        num_accepted_tokens: int,
    ) -> None:
        """Learn from a verified draft; `kind` None says that the step had none."""
        state = self._state(request)
        state.num_steps_without_draft = state.num_steps_without_draft + 1 if kind is None else 0
        if kind is None:
            return
        for rates in (state.rates, self._kind_rates):
            rates.setdefault(kind, AcceptanceRate()).observe(
                num_draft_tokens=num_draft_tokens, num_accepted_tokens=num_accepted_tokens
            )

    def finish(self, request: Request) -> None:
        self._states.pop(request.request_id, None)

    def _best_length(self, accept_prob: float, kind: DraftKind, *, num_rows: int) -> int:
        """The k that maximises (1 + p + ... + p^k) ÷ cost of a step where every row drafts k."""
        lengths = np.arange(self._max_length + 1)
        num_expected = np.cumsum(accept_prob**lengths)
        num_drafted = num_rows * lengths if kind == "draft_model" else 0
        seconds = self.cost.seconds(num_rows * (1 + lengths), num_drafted)
        return int((num_expected / seconds).argmax())

    def _rate(self, request: Request, kind: DraftKind) -> float:
        prior = self._kind_rates.setdefault(kind, AcceptanceRate()).estimate(0.7)
        return self._state(request).rates.setdefault(kind, AcceptanceRate()).estimate(prior)

    def _state(self, request: Request) -> _RequestState:
        return self._states.setdefault(request.request_id, _RequestState({}))
