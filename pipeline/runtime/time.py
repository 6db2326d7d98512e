"""The worker's idea of the present: the store's clock, carried on by the monotonic clock of this machine.

Due times are written by one worker and judged by another, and leases by the database: all follow the database's clock,
so that a machine whose wall clock is wrong or jumps neither runs a retry early nor loses its leases.
"""

from __future__ import annotations

import threading

from pipeline.core.clock import Clock

__all__ = ["StoreClock"]


class StoreClock:
    """A clock that follows the store's. Until the first `sync` it is the machine's own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset = clock.time() - clock.monotonic()

    def time(self) -> float:
        return self._clock.monotonic() + self._offset

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sync(self, store_time: float, *, asked_at: float, answered_at: float) -> None:
        """Take over the store's time, read between two monotonic times: the middle is the best guess."""
        with self._lock:
            self._offset = store_time - (asked_at + answered_at) / 2
