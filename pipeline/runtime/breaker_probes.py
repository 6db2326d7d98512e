"""The probes of one worker: which circuits it may try, with which job, and how that ended. No threads, no store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.breaker import (
    BreakerKey,
    BreakerState,
    Circuit,
    ProbeEnd,
    Step,
    may_probe,
    probe_ended,
    probe_renewed,
    probe_taken,
)
from pipeline.runtime.breaker_view import BreakerView
from pipeline.runtime.delivery import Delivery

__all__ = ["Probe", "Probes"]

START_SECONDS = (
    5.0  # from the grant of a probe to the start of its job: else another worker may have more room
)
RUN_SECONDS = 600.0  # after that another probe goes, whatever this one still does


@dataclass
class Probe:
    """A circuit that this worker may try. `end` is set when it is known and not told yet."""

    since: float
    delivery: Delivery | None = None
    claimed: bool = False
    end: ProbeEnd | None = None


class Probes:
    """Not thread-safe: its owner guards it. Times are those of the store's clock."""

    def __init__(self, view: BreakerView, *, worker_id: str, lease: float) -> None:
        self._view = view
        self._worker_id = worker_id
        self._lease = lease
        self._own: dict[BreakerKey, Probe] = {}

    def steps(self, waiting: Callable[[BreakerKey], bool], now: float) -> dict[BreakerKey, Step]:
        """What to ask the store for: an end, more time, or a probe where a job waits for one."""
        steps: dict[BreakerKey, Step] = {}
        for key, probe in self._own.items():
            self._give_up(probe, now)
            if probe.end is not None:
                steps[key] = self._end(key, probe.end)
            elif self._is_ours(key) and self._view.circuits[key].probe_until - now < self._lease * 2 / 3:
                steps[key] = self._renew()
        for key, circuit in self._view.circuits.items():
            if key not in self._own and may_probe(circuit, now) and waiting(key):
                steps[key] = self._take()
        return steps

    def _give_up(self, probe: Probe, now: float) -> None:
        limit = RUN_SECONDS if probe.claimed else START_SECONDS
        if probe.end is None and now - probe.since > limit:
            probe.end = ProbeEnd.UNKNOWN

    def _end(self, key: BreakerKey, end: ProbeEnd) -> Step:
        breaker, by = self._view.breaker(key), self._worker_id
        return lambda circuit, now: probe_ended(circuit, breaker, end, by=by, now=now)

    def _renew(self) -> Step:
        by, lease = self._worker_id, self._lease
        return lambda circuit, now: probe_renewed(circuit, by=by, now=now, lease=lease)

    def _take(self) -> Step:
        by, lease = self._worker_id, self._lease
        return lambda circuit, now: probe_taken(circuit, by=by, now=now, lease=lease)

    def granted(self, now: float) -> list[BreakerKey]:
        """Compare with what the store says: forget what is over, give what is newly this worker's."""
        for key in [key for key in self._own if not self._is_ours(key)]:
            del self._own[key]
        fresh = [key for key in self._view.circuits if key not in self._own and self._is_ours(key)]
        self._own |= {key: Probe(now) for key in fresh}
        return fresh

    def _is_ours(self, key: BreakerKey) -> bool:
        circuit: Circuit | None = self._view.circuits.get(key)
        return (
            circuit is not None
            and circuit.state is BreakerState.HALF_OPEN
            and circuit.prober == self._worker_id
        )

    def send(self, key: BreakerKey, delivery: Delivery | None) -> None:
        """Try with this job; without one there is nothing to try with, and others may."""
        probe = self._own[key]
        probe.delivery = delivery
        if delivery is None:
            probe.end = ProbeEnd.UNKNOWN

    def passes(self, delivery: Delivery) -> bool:
        """Whether this job is a probe that has not been claimed yet."""
        return any(p.delivery is delivery and p.end is None and not p.claimed for p in self._own.values())

    def claim_answered(self, delivery: Delivery, *, granted: bool) -> None:
        """Whether the probe runs now. One that does not (another worker has the job, or the store is away) tells nothing."""
        for probe in self._own.values():
            if probe.delivery is delivery and not probe.claimed:
                probe.claimed = granted
                probe.end = None if granted else ProbeEnd.UNKNOWN

    def key_of(self, delivery: Delivery) -> BreakerKey | None:
        """The circuit that this job probes."""
        for key, probe in self._own.items():
            if probe.delivery is delivery:
                return key
        return None

    def run_ended(self, key: BreakerKey, end: ProbeEnd) -> None:
        probe = self._own[key]
        probe.end = probe.end or end

    def hand_back(self) -> dict[BreakerKey, Step]:
        """The worker goes: other workers may probe at once."""
        return {key: self._end(key, probe.end or ProbeEnd.UNKNOWN) for key, probe in self._own.items()}

    def __bool__(self) -> bool:
        return bool(self._own)
