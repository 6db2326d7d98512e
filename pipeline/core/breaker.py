"""The circuit breaker of a job type: when its jobs are held back because the thing they need is broken.

    closed --failures in a row | ratio | dlq_flood--> open --reset_after--> half-open --probe passed--> closed
                                                       ^                        |
                                                       +-----probe failed-------+

A *circuit* is the state that all workers share, as a value; everything here is a function from one circuit to the next, at a
time that is passed in (epoch seconds, of the store's clock). The store applies one under a lock, so the rules stand here only.
Half-open one *probe* is let through in the whole fleet: a lease with an end, so that a prober that dies or vanishes does not
keep the circuit half-open. A probe that tells nothing (its job was put off, or taken by another worker) makes room for the next one
at once. After closing, the backlog is let go gradually, see `released`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from pipeline.core.job import Job
from pipeline.core.outcome import Cancelled, Crashed, Failed, Outcome, Rejected, Succeeded
from pipeline.core.quick import new_tuple
from pipeline.errors import ConfigError

__all__ = [
    "CLOSED_CIRCUIT",
    "RAMP_SECONDS",
    "Breaker",
    "BreakerKey",
    "BreakerState",
    "Circuit",
    "OpenReason",
    "ProbeEnd",
    "Sign",
    "Step",
    "Tally",
    "closed_by_hand",
    "counted",
    "key_of",
    "may_probe",
    "opened_by_hand",
    "probe_end",
    "probe_ended",
    "probe_renewed",
    "probe_taken",
    "released",
    "sign_of",
]


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class OpenReason(StrEnum):
    """Why a circuit is open."""

    FAILURES = "failures"  # so many in a row
    RATIO = "ratio"  # too large a share of the runs failed
    DLQ_FLOOD = "dlq_flood"  # too large a share of the jobs died
    OPERATOR = "operator"


class BreakerKey(NamedTuple):
    """A job type, or one tenant of it. An empty tenant means all of them."""

    job_type: str
    tenant: str = ""


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """When a job type is held back, and for how long.

    It opens after `failures` failed attempts in a row. With `ratio` it opens instead when so large a share of the runs failed
    within `window` seconds, at least `failures` of them. It also opens when the share `flood` of the jobs that ended in a
    window died, at least `flood_least` of them, so that a bad release does not drain a topic into the DLQ (None: never).
    After `reset_after` seconds one job is let through as a probe: if it succeeds the breaker closes, if it fails it stays open
    for as long again.

    Failed attempts count, and overrun time limits; with `errors` only those errors. What the handler means for the job alone
    (permanent errors, `Reject`, `Cancel`, `Snooze`) does not, nor what the handler never saw, nor the retries in place of a job
    that runs in order: only its first failure tells of others. With `per_tenant` each tenant of
    the job type has a breaker of its own. Raises `ConfigError` on values that make no sense.
    """

    failures: int = 10
    ratio: float | None = None
    window: float = 60.0
    reset_after: float = 60.0
    per_tenant: bool = False
    errors: tuple[type[BaseException], ...] = ()
    flood: float | None = 0.5
    flood_least: int = 100

    def __post_init__(self) -> None:
        _check("failures", self.failures, 1, 1_000_000)
        _check("ratio", self.ratio, 0, 1)
        _check("window", self.window, 1, 86_400)
        _check("reset_after", self.reset_after, 0.1, 86_400)
        _check("flood", self.flood, 0, 1)
        _check("flood_least", self.flood_least, 1, 1_000_000)
        if not all(isinstance(error, type) and issubclass(error, BaseException) for error in self.errors):
            raise ConfigError(
                f"breaker: errors is {self.errors!r}; allowed: a tuple of classes of exceptions"
            )

    def counts(self, error: BaseException) -> bool:
        """Whether an attempt that this error ended speaks against what the job type needs."""
        return not self.errors or isinstance(error, self.errors)


def _check(key: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise ConfigError(f"breaker: {key} is {value}; allowed: {least:g} to {most:g}")


def key_of(breaker: Breaker | None, job: Job) -> BreakerKey:
    """The circuit that a job's runs are counted for."""
    tenant = job.tenant if breaker is not None and breaker.per_tenant else ""
    return new_tuple(BreakerKey, (job.job_type, tenant))


# --- what runs tell


class Sign(StrEnum):
    """What the end of a run says of that which the job type needs."""

    GOOD = "good"
    BAD = "bad"
    ANSWERED = "answered"  # the handler came to an answer, which is against this job only
    CRASHED = "crashed"  # its process died: this is held against the job, but is no success either
    SILENT = "silent"  # the handler was not asked, or put the job off


def sign_of(outcome: Outcome) -> Sign:
    if isinstance(outcome, Succeeded):
        return Sign.GOOD
    if isinstance(outcome, Failed):
        if outcome.reason != "max_attempts":  # named by who could not find a handler, or read the payload
            return Sign.SILENT
        return Sign.BAD if outcome.counts and not outcome.permanent else Sign.ANSWERED
    if isinstance(outcome, Rejected):
        return Sign.ANSWERED if outcome.reason == "rejected" else Sign.SILENT
    if isinstance(outcome, Cancelled):
        return Sign.ANSWERED
    return Sign.CRASHED if isinstance(outcome, Crashed) else Sign.SILENT


@dataclass(slots=True)
class Tally:
    """What one worker has seen of a circuit's jobs and not told yet."""

    runs: int = 0  # good and bad ones
    failed: int = 0
    streak: int = 0  # bad ones since the last good one
    broken: bool = False  # whether there was a good one
    ended: int = 0  # jobs that will not run again
    dead: int = 0

    def add(self, sign: Sign, *, ended: bool, dead: bool, runs: int = 1) -> None:
        """Count so many runs that ended alike."""
        if sign is Sign.GOOD:
            self.runs += runs
            self.streak = 0
            self.broken = True
        elif sign is Sign.BAD:
            self.runs += runs
            self.failed += runs
            self.streak += runs
        self.ended += ended * runs
        self.dead += dead * runs

    def after(self, earlier: Tally) -> Tally:
        """What was seen earlier and what this one has, as if one had counted both."""
        return Tally(
            runs=earlier.runs + self.runs,
            failed=earlier.failed + self.failed,
            streak=self.streak if self.broken else earlier.streak + self.streak,
            broken=earlier.broken or self.broken,
            ended=earlier.ended + self.ended,
            dead=earlier.dead + self.dead,
        )


# --- the shared state


class Circuit(NamedTuple):
    """One breaker, as all workers see it.

    `by` is the worker or the person that made the last change of state, at `changed_at`; `opened` counts how often it opened.
    The counts are those of the window that began at `counted_from`; of one that is not closed this is when it opened.
    `retry_at` is when an open one may be probed (infinite: only a person closes it). `prober` is the worker whose probe is
    under way, until `probe_until` at the latest.
    """

    state: BreakerState = BreakerState.CLOSED
    reason: str = ""
    by: str = ""
    changed_at: float = 0.0
    opened: int = 0
    streak: int = 0
    counted_from: float = 0.0
    runs: int = 0
    failed: int = 0
    ended: int = 0
    dead: int = 0
    retry_at: float = 0.0
    prober: str = ""
    probe_until: float = 0.0


CLOSED_CIRCUIT = Circuit()
Step = Callable[[Circuit, float], Circuit]


def counted(circuit: Circuit, breaker: Breaker, tally: Tally, *, by: str, now: float) -> Circuit:
    """Take in what a worker has seen, and open if that is too much. Only a closed one counts: what ends later began before."""
    if circuit.state is not BreakerState.CLOSED:
        return circuit
    fresh = circuit if now - circuit.counted_from <= breaker.window else _emptied(circuit, now)
    seen = fresh._replace(
        streak=tally.streak if tally.broken else fresh.streak + tally.streak,
        runs=fresh.runs + tally.runs,
        failed=fresh.failed + tally.failed,
        ended=fresh.ended + tally.ended,
        dead=fresh.dead + tally.dead,
    )
    reason = _why_open(seen, breaker)
    if reason is None:
        return seen
    return _opened(seen, reason, by=by, now=now, retry_at=now + breaker.reset_after)


def _emptied(circuit: Circuit, now: float) -> Circuit:
    return circuit._replace(counted_from=now, runs=0, failed=0, ended=0, dead=0)


def _why_open(circuit: Circuit, breaker: Breaker) -> OpenReason | None:
    if breaker.ratio is None:
        if circuit.streak >= breaker.failures:
            return OpenReason.FAILURES
    elif circuit.failed >= max(breaker.failures, breaker.ratio * circuit.runs):
        return OpenReason.RATIO
    is_flood = (
        breaker.flood is not None
        and circuit.dead >= breaker.flood_least
        and circuit.dead >= breaker.flood * circuit.ended
    )
    return OpenReason.DLQ_FLOOD if is_flood else None


def _opened(circuit: Circuit, reason: OpenReason, *, by: str, now: float, retry_at: float) -> Circuit:
    if circuit.state is BreakerState.CLOSED:
        circuit = circuit._replace(opened=circuit.opened + 1, counted_from=now)
    return circuit._replace(
        state=BreakerState.OPEN,
        reason=reason,
        by=by,
        changed_at=now,
        retry_at=retry_at,
        prober="",
        probe_until=0.0,
    )


def _closed(circuit: Circuit, *, by: str, now: float) -> Circuit:
    return Circuit(by=by, changed_at=now, opened=circuit.opened, counted_from=now)


def opened_by_hand(circuit: Circuit, *, by: str, now: float, seconds: float = inf) -> Circuit:
    """Hold the jobs back, whatever they do: for so many seconds, then a probe decides; or until a person closes it."""
    return _opened(circuit, OpenReason.OPERATOR, by=by, now=now, retry_at=now + seconds)


def closed_by_hand(circuit: Circuit, *, by: str, now: float) -> Circuit:
    return circuit if circuit.state is BreakerState.CLOSED else _closed(circuit, by=by, now=now)


# --- probes


class ProbeEnd(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"  # it told nothing: the next one may go at once


def probe_end(circuit: Circuit, sign: Sign, *, dead: bool) -> ProbeEnd:
    """What the run of a probe means for the circuit."""
    if circuit.reason == OpenReason.DLQ_FLOOD and dead:
        return ProbeEnd.FAILED
    if sign in (Sign.GOOD, Sign.ANSWERED):
        return ProbeEnd.PASSED
    return ProbeEnd.UNKNOWN if sign is Sign.SILENT else ProbeEnd.FAILED


def may_probe(circuit: Circuit, now: float) -> bool:
    if circuit.state is BreakerState.OPEN:
        return now >= circuit.retry_at
    return circuit.state is BreakerState.HALF_OPEN and now >= circuit.probe_until


def probe_taken(circuit: Circuit, *, by: str, now: float, lease: float) -> Circuit:
    """Take the probe for `lease` seconds, if it is to be had; the circuit names the prober."""
    if not may_probe(circuit, now):
        return circuit
    return circuit._replace(
        state=BreakerState.HALF_OPEN, by=by, changed_at=now, prober=by, probe_until=now + lease
    )


def probe_renewed(circuit: Circuit, *, by: str, now: float, lease: float) -> Circuit:
    return circuit._replace(probe_until=now + lease) if _probes(circuit, by) else circuit


def probe_ended(circuit: Circuit, breaker: Breaker, end: ProbeEnd, *, by: str, now: float) -> Circuit:
    """Close, open again, or make room for the next probe. The end of a probe that is another's by now changes nothing."""
    if not _probes(circuit, by):
        return circuit
    if end is ProbeEnd.PASSED:
        return _closed(circuit, by=by, now=now)
    wait = breaker.reset_after if end is ProbeEnd.FAILED else 0.0
    return circuit._replace(
        state=BreakerState.OPEN, by=by, changed_at=now, retry_at=now + wait, prober="", probe_until=0.0
    )


def _probes(circuit: Circuit, worker: str) -> bool:
    return circuit.state is BreakerState.HALF_OPEN and circuit.prober == worker


# --- after closing

RAMP_SECONDS = 15.0


def released(seconds: float) -> float:
    """How many jobs a worker may have let go so long after closing: 2, and twice as many each second; then all."""
    return inf if seconds >= RAMP_SECONDS else 2.0 ** (max(0.0, seconds) + 1)
