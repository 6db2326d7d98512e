"""Circuits of breakers in memory, and records parked there: the twins of what is on Postgres."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pipeline.core.breaker import CLOSED_CIRCUIT, BreakerKey, BreakerState, Circuit, Step
from pipeline.core.clock import Clock
from pipeline.core.parked import ParkedRecord
from pipeline.core.ports import BreakerLook
from pipeline.errors import StoreUnavailable

__all__ = ["MemoryBreakers", "MemoryParking"]


class MemoryBreakers:
    """See `pipeline.core.ports.BreakerStore`. A closed one raises `StoreUnavailable`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._circuits: dict[BreakerKey, Circuit] = {}
        self._touched: dict[BreakerKey, float] = {}
        self._closed = False

    def look(self) -> BreakerLook:
        with self._lock:
            now = self._now()
            return BreakerLook(now, {k: c for k, c in self._circuits.items() if not _at_rest(c, now)})

    def change(self, steps: Mapping[BreakerKey, Step]) -> BreakerLook:
        with self._lock:
            now = self._now()
            fresh = CLOSED_CIRCUIT._replace(changed_at=now, counted_from=now)
            after = {key: step(self._circuits.get(key, fresh), now) for key, step in steps.items()}
            for key, circuit in after.items():
                if circuit != self._circuits.get(key):
                    self._touched[key] = now
            self._circuits |= after
            return BreakerLook(now, after)

    def forget(self, older_than: float) -> int:
        with self._lock:
            limit = self._now() - older_than
            gone = [
                key
                for key, circuit in self._circuits.items()
                if circuit.state is BreakerState.CLOSED and self._touched[key] < limit
            ]
            for key in gone:
                del self._circuits[key], self._touched[key]
            return len(gone)

    def close(self) -> None:
        self._closed = True

    def _now(self) -> float:
        if self._closed:
            raise StoreUnavailable("the breakers in memory: they are closed")
        return self._clock.time()


def _at_rest(circuit: Circuit, now: float) -> bool:
    counts = circuit.streak or circuit.failed or circuit.dead
    return circuit.state is BreakerState.CLOSED and not counts and circuit.changed_at <= now - 60


class MemoryParking:
    """See `pipeline.core.ports.Parking`. A closed one raises `StoreUnavailable`."""

    def __init__(self) -> None:
        self._parked: dict[tuple[str, int], ParkedRecord] = {}
        self._closed = False

    def park(self, parked: ParkedRecord) -> None:
        self._check_open()
        self._parked[parked.job.job_id, parked.job.hop] = parked

    def load(self, job_id: str, hop: int) -> ParkedRecord | None:
        self._check_open()
        return self._parked.get((job_id, hop))

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the parking in memory: it is closed")
