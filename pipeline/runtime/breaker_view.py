"""What one worker knows of the circuits that all share, and what it has yet to tell: no threads, no store.

Between two looks at the store a worker goes by its own counts: it holds a job type back from the moment that these are too
many, and learns from the store what all the others saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from pipeline.core.breaker import (
    CLOSED_CIRCUIT,
    RAMP_SECONDS,
    Breaker,
    BreakerKey,
    BreakerState,
    Circuit,
    Sign,
    Step,
    Tally,
    counted,
    released,
)
from pipeline.core.job import Job

__all__ = ["BreakerView", "Change"]


class Change(NamedTuple):
    """A circuit that is in another state than this worker knew."""

    key: BreakerKey
    before: Circuit
    after: Circuit


class _Pending(NamedTuple):
    """A tally, and when it was begun."""

    tally: Tally
    since: float


class BreakerView:
    """`breakers` are those of the declared job types, by name. Not thread-safe: its owner guards it."""

    def __init__(self, breakers: Mapping[str, Breaker], *, worker_id: str) -> None:
        self._breakers = breakers
        self._worker_id = worker_id
        self._pending: dict[BreakerKey, _Pending] = {}
        self._told: dict[BreakerKey, Tally] = {}  # on its way to the store
        self._let_go: dict[BreakerKey, float] = {}  # since it closed
        self._shared: dict[BreakerKey, Circuit] = {}  # as the store told them
        self.circuits: dict[
            BreakerKey, Circuit
        ] = {}  # the same, but for those that our own counts hold open already
        self.holding: dict[str, frozenset[BreakerKey]] = {}  # by job type, circuits that keep some jobs back

    def breaker(self, key: BreakerKey) -> Breaker:
        """A type without one may still be opened by hand: its probes are judged like others."""
        return self._breakers.get(key.job_type) or _BY_HAND

    # --- runs

    def note(
        self, key: BreakerKey, sign: Sign, *, ended: bool, dead: bool, now: float, runs: int = 1
    ) -> bool:
        """Count the end of a run, or of `runs` alike; True when that is too much, and the circuit is held open from here on."""
        breaker = self._breakers.get(key.job_type)
        if breaker is None:
            return False
        is_bad = sign is Sign.BAD or dead
        pending = self._pending.get(key)
        if pending is None:
            if not is_bad and breaker.per_tenant and key not in self.circuits:
                return (
                    False  # there may be any number of tenants: they are counted from their first failure on
                )
            pending = self._pending[key] = _Pending(Tally(), now)
        pending.tally.add(sign, ended=ended, dead=dead, runs=runs)
        if not is_bad or not self._trips(key, now):
            return False
        self._hold()
        return True

    def _trips(self, key: BreakerKey, now: float) -> bool:
        """Hold a circuit open when what is not told yet will open it."""
        circuit = self.circuits.get(key, CLOSED_CIRCUIT)
        tally = self._pending[key].tally
        seen = counted(circuit, self.breaker(key), tally, by=self._worker_id, now=now)
        if seen.state is circuit.state:
            return False
        self.circuits[key] = seen
        return True

    def steps(self, now: float) -> dict[BreakerKey, Step]:
        """What must be told to the store: failures, and successes where failures are known. Then `take_in`, or `not_told`."""
        self._told = {}
        for key, (tally, since) in list(self._pending.items()):
            known = self.circuits.get(key)
            if tally.failed or tally.dead or (known is not None and (known.streak or known.failed)):
                self._told[key] = self._pending.pop(key).tally
            elif now - since > self.breaker(key).window:
                del self._pending[key]  # nothing but successes, of another window
        return {key: self._count(key, tally) for key, tally in self._told.items()}

    def _count(self, key: BreakerKey, tally: Tally) -> Step:
        breaker, by = self.breaker(key), self._worker_id
        return lambda circuit, now: counted(circuit, breaker, tally, by=by, now=now)

    def not_told(self) -> None:
        """The store did not answer: what was to be told is told next time."""
        for key, tally in self._told.items():
            later = self._pending.get(key)
            self._pending[key] = _Pending(
                later.tally.after(tally) if later else tally, later.since if later else 0.0
            )
        self._told = {}

    # --- what the store tells

    def take_in(
        self, circuits: Mapping[BreakerKey, Circuit], *, all_of_them: bool, now: float
    ) -> list[Change]:
        """Know these from here on; give those whose state has changed. With `all_of_them` the others are at rest."""
        changes = [
            Change(key, before, circuit)
            for key, circuit in circuits.items()
            if circuit.state is not (before := self._shared.get(key, CLOSED_CIRCUIT)).state
        ]
        self._shared = dict(circuits) if all_of_them else {**self._shared, **circuits}
        self.circuits = dict(self._shared)
        self._told = {}
        for key, circuit in circuits.items():
            if circuit.state is not BreakerState.CLOSED:
                self._pending.pop(key, None)  # what ran when it opened says nothing of what is to come
                self._let_go.pop(key, None)
        for key in [
            key for key, pending in self._pending.items() if pending.tally.failed or pending.tally.dead
        ]:
            self._trips(key, now)
        for key in [key for key in self._let_go if key not in self.circuits]:
            del self._let_go[key]
        self._hold()
        return changes

    def _hold(self) -> None:
        holding: dict[str, set[BreakerKey]] = {}
        for key, circuit in self.circuits.items():
            if circuit.state is not BreakerState.CLOSED or circuit.opened:
                holding.setdefault(key.job_type, set()).add(key)
        self.holding = {job_type: frozenset(keys) for job_type, keys in holding.items()}

    # --- which jobs wait

    def key_that_holds(self, job: Job, now: float) -> BreakerKey | None:
        """The circuit that keeps this job back, if one does."""
        keys = self.holding.get(job.job_type)
        if keys is None:
            return None
        for key in (BreakerKey(job.job_type), BreakerKey(job.job_type, job.tenant)):
            if key in keys and self.holds(key, now):
                return key
        return None

    def holds(self, key: BreakerKey, now: float) -> bool:
        """Whether jobs are kept back: it is open, or has closed a moment ago and lets them go one by one."""
        circuit = self.circuits.get(key)
        if circuit is None:
            return False
        return circuit.state is not BreakerState.CLOSED or self._ramps(circuit, now)

    def closed(self, key: BreakerKey) -> bool:
        return self.circuits.get(key, CLOSED_CIRCUIT).state is BreakerState.CLOSED

    def _ramps(self, circuit: Circuit, now: float) -> bool:
        return bool(circuit.opened) and now - circuit.changed_at < RAMP_SECONDS

    def ramping(self, now: float) -> bool:
        """Whether any circuit lets jobs go one by one."""
        return any(c.state is BreakerState.CLOSED and self._ramps(c, now) for c in self.circuits.values())

    def allowance(self, key: BreakerKey, now: float) -> float:
        """How many jobs may go now; infinite when nothing holds them."""
        circuit = self.circuits.get(key)
        if circuit is None or not self.holds(key, now):
            return inf
        if circuit.state is not BreakerState.CLOSED:
            return 0.0
        return max(0.0, released(now - circuit.changed_at) - self._let_go.get(key, 0.0))

    def let_go(self, key: BreakerKey, number: int) -> None:
        """Note that so many went."""
        self._let_go[key] = self._let_go.get(key, 0.0) + number


_BY_HAND = Breaker()
