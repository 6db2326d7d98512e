"""Claims taken jobs in one round-trip, and readies the granted ones to run.

A batch that could not be asked goes back to where it was: nothing is lost, no attempt is burnt.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from pipeline.core.claims import Claim, Verdict
from pipeline.core.clock import Clock
from pipeline.core.events import Trail, trail_of_claim, trail_of_repeat
from pipeline.core.job import Job
from pipeline.core.metrics import Metrics
from pipeline.core.outcome import Outcome, Snoozed
from pipeline.core.ports import Codec, JobStore
from pipeline.core.state import JobState
from pipeline.runtime.buffer import Buffer
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.events import EventSink
from pipeline.runtime.handlers import PROCESS, Registry
from pipeline.runtime.onward import waits_until
from pipeline.runtime.opening import decode_payload, find_handler

__all__ = ["Claimer"]

log = logging.getLogger("pipeline.claim")

SOON = 0.02  # seconds to wait for a job that is due by this worker's clock and not yet by the store's
_CLAIMED: Final = Verdict.CLAIMED  # asked for every job, and a member of an enum takes long to find


class Claimer:
    """`claim` is called by one thread; `on_runs` takes runs that ended before their handler could start.

    With `isolate` jobs that may kill their process are marked, to be run apart.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        buffer: Buffer,
        store: JobStore,
        codec: Codec,
        registry: Registry,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        held_recheck: float,
        on_runs: Callable[[Sequence[Run]], None],
        isolate: bool = False,
    ) -> None:
        self._worker_id = worker_id
        self._buffer = buffer
        self._store = store
        self._codec = codec
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._held_recheck = held_recheck
        self._isolate = isolate
        self._on_runs = on_runs
        self._free = frozenset(
            handler.job_type.name for handler in registry.handlers() if not handler.job_type.deduplicate
        )

    def claim(self, taken: Sequence[Delivery]) -> list[Delivery]:
        """Give the deliveries that this worker shall run now, payload decoded. Raises `StoreUnavailable`."""
        try:
            claims = self._ask(taken)
        except BaseException:
            self._buffer.put_back(taken)
            raise
        granted: list[Delivery] = []
        duplicates: list[Delivery] = []
        held: list[Delivery] = []
        trails: list[Trail] = []
        repeats: list[Trail] = []
        now = self._clock.time()
        for delivery, claim in zip(taken, claims, strict=True):
            if claim.verdict is _CLAIMED:
                delivery.token = claim.token
                delivery.doubtful = False
                if claim.attempt:
                    delivery.job = delivery.job._replace(attempt=claim.attempt)
                if claim.crashes is not None:
                    delivery.suspect, delivery.crashes = self._isolate, claim.crashes
                granted.append(delivery)
                trails.append(trail_of_claim(delivery.job, claim, worker=self._worker_id, at=now))
                if claim.previous:
                    self._tell_rescue(delivery, claim)
            elif claim.verdict is Verdict.DUPLICATE:
                duplicates.append(delivery)
                told = trail_of_repeat(delivery.job, claim, worker=self._worker_id, at=now)
                if told is not None:
                    repeats.append(told)
            elif claim.due_at:
                self._buffer.hold([delivery], max(claim.due_at, now + SOON))
            else:
                held.append(delivery)
        self._events.claimed(trails)
        if repeats:
            self._events.settled(repeats)
        self._put_away(duplicates, held, now)
        self._count(granted, now)
        return self._decode(granted, now)

    def _ask(self, taken: Sequence[Delivery]) -> Sequence[Claim]:
        """The store's answers; jobs of types that do not suppress duplicates are granted without it."""
        free = self._free
        if not free:
            return self._store.claim(self._worker_id, [d.claim_request() for d in taken])
        asked = [d.claim_request() for d in taken if d.job.job_type not in free]
        answers = iter(self._store.claim(self._worker_id, asked) if asked else ())
        return [_granted_freely(d.job) if d.job.job_type in free else next(answers) for d in taken]

    def _put_away(self, duplicates: list[Delivery], held: list[Delivery], now: float) -> None:
        """Counted first: once given back, their offsets may be committed at any moment."""
        if duplicates:
            for (job_type, queue), count in _by_type(duplicates).items():
                self._metrics.duplicates(job_type, queue, count)
            self._buffer.done(duplicates)
        if held:
            for (job_type, queue), count in _by_type(held).items():
                self._metrics.held(job_type, queue, count)
            self._buffer.hold(held, now + self._held_recheck)

    def _count(self, granted: list[Delivery], now: float) -> None:
        waits: dict[tuple[str, str], list[float]] = {}
        for delivery in granted:
            job = delivery.job
            waits.setdefault((job.job_type, job.queue), []).append(
                max(0.0, now - max(job.enqueued_at, job.not_before))
            )
        for (job_type, queue), values in waits.items():
            self._metrics.claimed(job_type, queue, len(values))
            self._metrics.observe_waiting(job_type, queue, values)

    def _decode(self, granted: list[Delivery], now: float) -> list[Delivery]:
        ready: list[Delivery] = []
        refused: list[Run] = []
        for delivery in granted:
            outcome = _still_waits(delivery, now) or find_handler(delivery, self._registry)
            if outcome is None and not _opened_in_child(delivery):
                outcome = decode_payload(delivery, self._codec)
            if outcome is None:
                ready.append(delivery)
            else:
                refused.append(Run(delivery, outcome, now, now))
        if refused:
            self._on_runs(refused)
        return ready

    def _tell_rescue(self, delivery: Delivery, claim: Claim) -> None:
        self._metrics.rescued(delivery.job.job_type, delivery.job.queue, 1)
        log.warning(
            "job taken over from a worker that is gone",
            extra={
                "action": "rescued",
                "job_id": delivery.job.job_id,
                "job_type": delivery.job.job_type,
                "previous_worker": claim.previous,
                "token": claim.token,
            },
        )


_FIRST: Final = Claim(_CLAIMED, 0)
_RETRY: Final = Claim(_CLAIMED, 0, JobState.RETRYING)
_REPLAY: Final = Claim(_CLAIMED, 0, JobState.DEAD)


def _granted_freely(job: Job) -> Claim:
    """A grant that is nowhere written down: it has no token, and what the job was before is told by its record."""
    if job.not_before:
        return _RETRY
    return _REPLAY if job.replays else _FIRST


def _still_waits(delivery: Delivery, now: float) -> Outcome | None:
    """Put a job off again whose wait is longer than a record may wait in a topic."""
    until = waits_until(delivery.record) if delivery.job.hop else 0.0
    return Snoozed(None, until, "long_wait") if until > now else None


def _opened_in_child(delivery: Delivery) -> bool:
    return delivery.suspect or (delivery.handler is not None and delivery.handler.lane == PROCESS)


def _by_type(deliveries: Sequence[Delivery]) -> Counter[tuple[str, str]]:
    return Counter((d.job.job_type, d.job.queue) for d in deliveries)
