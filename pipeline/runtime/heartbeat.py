"""Keeps the worker's row in the store fresh, and says whether the worker may still claim.

One row per worker, not per job: all claims of a worker live and die with its heartbeat. A worker that cannot renew its
lease stops claiming before others may take its jobs over; what it runs goes on, and is settled only if its token holds.
"""

from __future__ import annotations

import logging
import threading

from pipeline.core.clock import Clock
from pipeline.core.ports import JobStore, WorkerInfo
from pipeline.errors import StoreUnavailable
from pipeline.runtime.time import StoreClock

__all__ = ["Heartbeat"]

log = logging.getLogger("pipeline.heartbeat")

RETRY_SECONDS = 0.5


class Heartbeat:
    """`beat` once before work starts; then `loop` on a thread of its own until `stop`."""

    def __init__(
        self, *, store: JobStore, worker: WorkerInfo, interval: float, clock: Clock, store_clock: StoreClock
    ) -> None:
        self._store = store
        self._worker = worker
        self._interval = interval
        self._clock = clock
        self._store_clock = store_clock
        self._valid_until = 0.0
        self._stopped = threading.Event()

    def beat(self) -> None:
        """Renew the lease. Raises `StoreUnavailable`."""
        asked = self._clock.monotonic()
        store_time = self._store.heartbeat(self._worker)
        answered = self._clock.monotonic()
        self._store_clock.sync(store_time, asked_at=asked, answered_at=answered)
        self._valid_until = asked + self._worker.lease

    def alive(self) -> bool:
        """Whether others must take this worker for alive."""
        return self._clock.monotonic() < self._valid_until

    def loop(self) -> None:
        wait = 0.0  # at once: the first answer waited for the connection to be made, and told the time badly
        while not self._stopped.wait(wait):
            try:
                self.beat()
                wait = self._interval
            except StoreUnavailable as error:
                wait = min(self._interval, RETRY_SECONDS)
                log.warning(
                    "heartbeat failed: %s", error, extra={"action": "heartbeat_failed", "alive": self.alive()}
                )

    def stop(self) -> None:
        self._stopped.set()
