"""How long a step takes, by its numbers of rows and tokens, and how long a draft model takes.

It is told what ran and how long that took; it does not know how a backend pads or cuts a step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_SCALE_SMOOTHING = 0.1
_COUNT_SMOOTHING = 0.05
_RELAXATION = 0.002
# What differs from the expected by more than this factor is no price but an accident.
_MAX_SURPRISE = 2.0

Counts = int | npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


class StepCost:
    """Seconds of a target step, with a curve for each power of two of rows, and of a draft token.

    Rows cost by themselves, since each has its own context to read.
    """

    def __init__(self) -> None:
        self.seconds_per_draft_token = 0.0
        self._curves: dict[int, _Curve] = {}

    def observe(self, num_tokens: int, seconds: float, *, num_rows: int = 1) -> None:
        """A step of so many tokens took so long."""
        self._curve(num_rows).observe(num_tokens, seconds)

    def observe_drafting(self, num_tokens: int, seconds: float) -> None:
        per_token = seconds / num_tokens
        known = self.seconds_per_draft_token or per_token
        self.seconds_per_draft_token = known + _SCALE_SMOOTHING * (per_token - known)

    def seconds(self, num_tokens: Counts, *, num_rows: int = 1) -> Seconds:
        return self._curve(num_rows).seconds(num_tokens)

    def _curve(self, num_rows: int) -> _Curve:
        """The first one starts from nothing, the others from what it has read."""
        key = (num_rows - 1).bit_length()
        if key not in self._curves:
            first = next(iter(self._curves.values()), None)
            self._curves[key] = _Curve(first.readings if first else {})
        return self._curves[key]


class _Curve:
    """Seconds by the number of tokens, interpolated between the numbers that ran.

    Every step corrects it: at once as a whole, since a busy machine slows all steps, and little by
    little where one number differs. The first reading of a number is believed, so that a stair is
    seen, and its unread neighbours follow it.
    """

    def __init__(self, readings: Mapping[int, float]) -> None:
        self.readings = dict(readings)
        self._own: set[int] = set()
        self._scale = 1.0
        self._first: Seconds = np.ones(1)
        self._current: Seconds = np.ones(1)
        if readings:
            self._draw({})

    def observe(self, num_tokens: int, seconds: float) -> None:
        if not self.readings:
            self._read(num_tokens, seconds)
            return
        expected = float(self.seconds(num_tokens))
        surprise = min(max(seconds / expected, 1 / _MAX_SURPRISE), _MAX_SURPRISE)
        if num_tokens not in self._own:
            self._read(num_tokens, surprise * expected / self._scale)
            return
        self._scale *= 1 + _SCALE_SMOOTHING * (surprise - 1)
        # What does not run goes back to its first reading, so that it is tried again.
        self._current += _RELAXATION * (self._first - self._current)
        self._current[num_tokens] *= 1 + _COUNT_SMOOTHING * (surprise - 1)

    def seconds(self, num_tokens: Counts) -> Seconds:
        """Outside of what was read, the nearest reading."""
        known = np.minimum(num_tokens, len(self._current) - 1)
        return np.asarray(self._scale * self._current[known])

    def _read(self, num_tokens: int, seconds: float) -> None:
        corrected = {n: float(self._current[n]) for n in self.readings}
        self._own.add(num_tokens)
        self.readings[num_tokens] = corrected[num_tokens] = seconds
        self._draw(corrected)

    def _draw(self, corrected: Mapping[int, float]) -> None:
        read = sorted(self.readings)
        counts = np.arange(read[-1] + 1)
        self._first = np.interp(counts, read, [self.readings[n] for n in read])
        current = [corrected.get(n, self.readings[n]) for n in read]
        self._current = np.interp(counts, read, current)
