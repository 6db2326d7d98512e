"""What the store tells people: the whole story of a job, and the workers.

Times are epoch seconds; 0 means that it did not happen (yet).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pipeline.core.claims import Settlement
from pipeline.core.job import Source
from pipeline.core.outcome import Failure
from pipeline.core.state import JobState

__all__ = ["AttemptOutcome", "AttemptStory", "JobStory", "WorkerStory", "attempt_outcome"]


class AttemptOutcome(StrEnum):
    """How a run ended that did not complete."""

    FAILED = "failed"
    SNOOZED = "snoozed"
    DEAD = "dead"
    LOST = "lost"


class AttemptStory(NamedTuple):
    """One run of a job that did not complete. A lost one started, at the latest, when it was claimed."""

    attempt: int
    token: int
    worker_id: str
    outcome: AttemptOutcome
    started_at: float
    finished_at: float
    reason: str = ""
    failure: Failure | None = None

    @property
    def duration(self) -> float:
        return _between(self.started_at, self.finished_at)


class JobStory(NamedTuple):
    """A job's row and every run that did not complete, the first one first. `worker_id` ran it last, or runs it.

    `crashes` is as in `pipeline.core.claims.Claim`.
    """

    job_id: str
    job_type: str
    tenant: str
    queue: str
    state: JobState
    attempt: int
    hop: int
    token: int
    worker_id: str
    source: Source
    reason: str
    enqueued_at: float
    claimed_at: float
    started_at: float
    finished_at: float
    due_at: float
    attempts: tuple[AttemptStory, ...] = ()
    crashes: int | None = None

    @property
    def duration(self) -> float:
        """How long the last run took; 0 while it runs."""
        return _between(self.started_at, self.finished_at)


class WorkerStory(NamedTuple):
    """A start of a worker process. It is alive until `alive_until` passes or it leaves."""

    worker_id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at: float
    heartbeat_at: float
    alive_until: float
    left_at: float
    alive: bool


def attempt_outcome(settlement: Settlement) -> AttemptOutcome | None:
    """How the run ended that is being settled; None when it leaves no attempt behind: it completed, or was cancelled."""
    if settlement.state is JobState.DEAD:
        return AttemptOutcome.DEAD
    if settlement.state is not JobState.RETRYING:
        return None
    return AttemptOutcome.FAILED if settlement.failure else AttemptOutcome.SNOOZED


def _between(start: float, end: float) -> float:
    return max(0.0, end - start) if start and end else 0.0
