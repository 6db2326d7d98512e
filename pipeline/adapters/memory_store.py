"""The job store in memory: the twin of the Postgres one, for tests and for trying things out.

It answers as Postgres does, from a clock that is passed in; one conformance suite holds both to that. Nothing survives
the process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from pipeline.core.claims import (
    Claim,
    ClaimRequest,
    Row,
    Settled,
    Settlement,
    Verdict,
    attempt_of,
    judge,
    refusal,
)
from pipeline.core.clock import Clock
from pipeline.core.job import EPOCH_LIMIT, Source
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome, AttemptStory, JobStory, WorkerStory, attempt_outcome
from pipeline.errors import StoreUnavailable

__all__ = ["MemoryJobStore"]


class MemoryJobStore:
    """See `pipeline.core.ports.JobStore`. Safe to call from several threads; a closed one raises `StoreUnavailable`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, JobStory] = {}
        self._workers: dict[str, WorkerStory] = {}
        self._closed = False

    def heartbeat(self, worker: WorkerInfo) -> float:
        with self._lock:
            self._check_open()
            now = self._clock.time()
            known = self._workers.get(worker.worker_id)
            if known is None or not known.left_at:  # a worker that left stays gone
                started = known.started_at if known else now
                self._workers[worker.worker_id] = WorkerStory(
                    *worker[:3], tuple(worker.queues), started, now, now + worker.lease, 0.0, alive=True
                )
            return now

    def leave(self, worker_id: str) -> None:
        with self._lock:
            self._check_open()
            known = self._workers.get(worker_id)
            if known is not None and not known.left_at:
                self._workers[worker_id] = known._replace(left_at=self._clock.time())

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        with self._lock:
            self._check_open()
            granted: set[str] = set()
            return [self._claim(worker_id, request, granted) for request in requests]

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        with self._lock:
            self._check_open()
            return [self._settle(worker_id, settlement) for settlement in settlements]

    def job(self, job_id: str) -> JobStory | None:
        """The whole story of a job; None when the store knows no such job."""
        with self._lock:
            self._check_open()
            return self._jobs.get(job_id.lower())

    def workers(self) -> list[WorkerStory]:
        """Every start of a worker that is on record, the first one first."""
        with self._lock:
            self._check_open()
            found = [
                worker._replace(alive=self._is_alive(worker_id))
                for worker_id, worker in self._workers.items()
            ]
            return sorted(found, key=lambda worker: (worker.started_at, worker.worker_id))

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        with self._lock:
            self._check_open()
            return dict(Counter(story.state for story in self._jobs.values()))

    def dead_count(self) -> int:
        """How many jobs are dead now."""
        return self.counts().get(JobState.DEAD, 0)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store in memory: this store is closed")

    def _is_alive(self, worker_id: str) -> bool:
        known = self._workers.get(worker_id)
        return known is not None and not known.left_at and known.alive_until > self._clock.time()

    def _left(self, worker_id: str) -> bool:
        known = self._workers.get(worker_id)
        return known is not None and bool(known.left_at)

    def _claim(self, worker: str, request: ClaimRequest, granted: set[str]) -> Claim:
        story = self._jobs.get(request.job_id)
        # A job that this very call granted is one that the caller does run: it is nobody's to take back.
        judged_for = "" if request.job_id in granted else worker
        alive = story is not None and (request.job_id in granted or self._is_alive(story.worker_id))
        row = story and _row(story, self._clock.time())
        verdict = judge(row, request, worker=judged_for, owner_alive=alive)
        if verdict is Verdict.CLAIMED and not self._is_alive(worker):
            verdict = Verdict.HELD
        if verdict is not Verdict.CLAIMED:
            return refusal(row, request, verdict) if row else Claim(verdict)
        granted.add(request.job_id)
        return self._grant(worker, request, story)

    def _grant(self, worker: str, request: ClaimRequest, story: JobStory | None) -> Claim:
        now = self._clock.time()
        if story is None:
            self._jobs[request.job_id] = _first_claim(worker, request, now)
            return Claim(Verdict.CLAIMED, 1)
        taken_over = story.state is JobState.RUNNING and story.worker_id != worker
        attempt = attempt_of(_row(story, now), request)
        crashes = story.crashes
        if taken_over and crashes is None and not self._left(story.worker_id):
            crashes = 0
        self._jobs[request.job_id] = _first_claim(worker, request, now)._replace(
            job_type=story.job_type,
            tenant=story.tenant,
            enqueued_at=story.enqueued_at,
            token=story.token + 1,
            attempt=attempt or request.attempt,
            attempts=(*story.attempts, _lost(story, now)) if taken_over else story.attempts,
            crashes=crashes,
        )
        previous = story.worker_id if taken_over else ""
        return Claim(
            Verdict.CLAIMED, story.token + 1, story.state, previous, attempt=attempt, crashes=crashes
        )

    def _settle(self, worker: str, settlement: Settlement) -> Settled:
        story = self._jobs.get(settlement.job_id)
        if story is None:
            return Settled(False, 0)
        if (story.token, story.worker_id) != (settlement.token, worker):
            return Settled(False, story.token)
        if story.state is not JobState.RUNNING:  # accepted when its first answer was lost on the way
            return Settled((story.state, story.hop) == (settlement.state, settlement.hop), story.token)
        self._jobs[settlement.job_id] = story._replace(
            state=settlement.state,
            attempt=settlement.row_attempt,
            hop=settlement.hop,
            started_at=settlement.started_at,
            finished_at=settlement.finished_at,
            due_at=min(settlement.due_at, EPOCH_LIMIT),
            reason=settlement.reason,
            attempts=(*story.attempts, *_ended(worker, settlement)),
            crashes=(story.crashes or 0) + 1 if settlement.crashed else story.crashes,
        )
        return Settled(True, settlement.token)


def _row(story: JobStory, now: float) -> Row:
    waits = story.state is JobState.RETRYING and story.due_at > now
    due_at = story.due_at if waits else 0.0
    return Row(story.state, story.hop, story.token, story.worker_id, story.source, story.attempt, due_at)


def _first_claim(worker: str, request: ClaimRequest, now: float) -> JobStory:
    return JobStory(
        job_id=request.job_id,
        job_type=request.job_type,
        tenant=request.tenant,
        queue=request.queue,
        state=JobState.RUNNING,
        attempt=request.attempt,
        hop=request.hop,
        token=1,
        worker_id=worker,
        source=Source(request.topic, request.partition, request.offset),
        reason="",
        enqueued_at=request.enqueued_at,
        claimed_at=now,
        started_at=0.0,
        finished_at=0.0,
        due_at=0.0,
    )


def _lost(story: JobStory, now: float) -> AttemptStory:
    """The run of a worker that is gone."""
    return AttemptStory(
        story.attempt,
        story.token,
        story.worker_id,
        AttemptOutcome.LOST,
        story.claimed_at,
        now,
        "lease_expired",
    )


def _ended(worker: str, settlement: Settlement) -> list[AttemptStory]:
    """The attempt that a run leaves behind; none when it completed or was cancelled."""
    outcome = attempt_outcome(settlement)
    if outcome is None:
        return []
    return [
        AttemptStory(
            settlement.attempt,
            settlement.token,
            worker,
            outcome,
            settlement.started_at,
            settlement.finished_at,
            settlement.reason,
            settlement.failure,
        )
    ]
