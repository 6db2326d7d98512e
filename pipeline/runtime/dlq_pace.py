"""How fast a replay goes: so many letters a second, and not while the workers are behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pipeline.core.clock import Clock

__all__ = ["Pace"]

LOOK_AGAIN = 1.0  # seconds between two looks at the lag
STEPS_A_SECOND = 5


class Pace:
    """`rate` is letters a second, `max_lag` records that a target may be behind; 0 means no limit.

    `lags` tells how far the workers of each target are behind. `stop` ends all waiting. For one thread.
    """

    def __init__(
        self,
        *,
        rate: float,
        max_lag: int,
        lags: Callable[[], Mapping[str, int]],
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        self._rate = rate
        self._max_lag = max_lag
        self._lags = lags
        self._clock = clock
        self._stop = stop
        self._due = 0.0
        self._looked_at = float("-inf")
        self._sent_since = 0

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def batch(self, most: int) -> int:
        """How many letters to send at once."""
        if self._rate:
            most = min(most, max(1, round(self._rate / STEPS_A_SECOND)))
        return min(most, max(1, self._max_lag // 2)) if self._max_lag else most

    def wait(self, tell: Callable[[str], None]) -> bool:
        """Wait until the next batch may be sent; False when told to stop. `tell` is told of each look at too high a lag."""
        while not self.stopping:
            if behind := self._behind():
                tell(behind)
                self._stop.wait(LOOK_AGAIN)
                self._looked_at = float("-inf")
            else:
                break
        self._stop.wait(max(0.0, self._due - self._clock.monotonic()))
        return not self.stopping

    def rest(self, seconds: float) -> None:
        """Wait so long, or until told to stop."""
        self._stop.wait(max(0.0, seconds))

    def sent(self, letters: int) -> None:
        """Count what was sent."""
        self._sent_since += letters
        if self._rate:
            self._due = max(self._due, self._clock.monotonic() - 1 / STEPS_A_SECOND) + letters / self._rate

    def _behind(self) -> str:
        """Why to hold back; looked at again after a second, or half the limit."""
        now = self._clock.monotonic()
        is_fresh = now < self._looked_at + LOOK_AGAIN and self._sent_since < max(1, self._max_lag // 2)
        if not self._max_lag or is_fresh:
            return ""
        self._looked_at, self._sent_since = now, 0
        lags = {topic: lag for topic, lag in self._lags().items() if lag > self._max_lag}
        return ", ".join(f"the workers of {topic} are {lag} behind" for topic, lag in sorted(lags.items()))
