"""The worker's idea of the present: the store's clock, carried on by the monotonic clock of this machine.

Due times are written by one worker and judged by another, and leases by the database: all follow the database's clock,
so that a machine whose wall clock is wrong or jumps neither runs a retry early nor loses its leases.
"""

from __future__ import annotations

import threading
from math import inf

from pipeline.core.clock import Clock

__all__ = ["CautiousClock", "StoreClock"]

DRIFT = 1e-4  # how far apart two clocks may run, in seconds a second


class StoreClock:
    """A clock that follows the store's. Until the first `sync` it is the machine's own.

    It is as good as the quickest answer: one that took long says little, and following it would move due times about.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset = clock.time() - clock.monotonic()
        self._doubt = inf  # how far off it may have been at `_synced_at`
        self._synced_at = 0.0

    def time(self) -> float:
        return self._clock.monotonic() + self._offset

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def doubt(self) -> float:
        """How many seconds it may be off by, at most. 0 before the first `sync`: there is nothing to be off from."""
        if self._doubt == inf:
            return 0.0
        return self._doubt + DRIFT * (self._clock.monotonic() - self._synced_at)

    def sync(self, store_time: float, *, asked_at: float, answered_at: float) -> None:
        """Learn the store's time, read between two monotonic times: the middle is the best guess, off by half at most.

        It is taken over when it is no worse than what is known, or when both cannot be true: then the store's clock was set.
        """
        offset, doubt = store_time - (asked_at + answered_at) / 2, (answered_at - asked_at) / 2
        with self._lock:
            known = self._doubt + DRIFT * (answered_at - self._synced_at)
            if doubt <= known or abs(offset - self._offset) > doubt + known:
                self._offset, self._doubt, self._synced_at = offset, doubt, answered_at


class CautiousClock:
    """The earliest that it may be by the store's clock: what is due by this one is due by any."""

    def __init__(self, clock: StoreClock) -> None:
        self._clock = clock

    def time(self) -> float:
        return self._clock.time() - self._clock.doubt()

    def monotonic(self) -> float:
        return self._clock.monotonic()
