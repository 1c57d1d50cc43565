"""How often the engine has crashed lately: how long to wait before the next start, and when to
give up."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_SECONDS = 600.0
MAX_DELAY_SECONDS = 30.0


class CrashHistory:
    """At most `max_crashes` within ten minutes are put up with."""

    def __init__(self, max_crashes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_crashes = max_crashes
        self._clock = clock
        self._times: list[float] = []

    def add(self) -> None:
        now = self._clock()
        self._times = [then for then in self._times if now - then < WINDOW_SECONDS] + [now]

    @property
    def is_too_long(self) -> bool:
        return len(self._times) > self._max_crashes

    @property
    def delay_seconds(self) -> float:
        """After the first crash none, then 1, 2, 4, 8 seconds and so on."""
        exponent = len(self._times) - 2
        return min(2.0**exponent, MAX_DELAY_SECONDS) if exponent >= 0 else 0.0
