"""Lifecycle events: each move of a job, and each change of a breaker, as a value. They go to the events topic and to the log."""

from __future__ import annotations

from typing import Final, NamedTuple

from pipeline.core.breaker import BreakerKey, Circuit
from pipeline.core.claims import Claim
from pipeline.core.decision import DeadLetter, Finish, RunLater
from pipeline.core.job import Job
from pipeline.core.state import JobState, Transition, Trigger, path

__all__ = [
    "BreakerChange",
    "Move",
    "Step",
    "Trail",
    "breaker_change",
    "trail_of_claim",
    "trail_of_decision",
    "trail_of_repeat",
]

# A state, the trigger that ended it, the state after; when (epoch seconds); how long the run took that this ended, None when none
# did; a reason and an error class, where there are.
Step = tuple[JobState, Trigger, JobState, float, float | None, str, str]


class Move(NamedTuple):
    """One move of one job. `at` is in epoch seconds; `duration` is how long the run took, None when none ended."""

    job_id: str
    job_type: str
    tenant: str
    queue: str
    worker: str
    attempt: int
    hop: int
    token: int
    previous: JobState
    trigger: Trigger
    state: JobState
    at: float
    duration: float | None = None
    reason: str = ""
    error_class: str = ""


class Trail:
    """Moves of one job under one claim, in their order; at least one.

    What travels inside a worker, with what all its moves share said once: nearly every job makes three of them.
    """

    __slots__ = ("job", "steps", "token", "worker")

    def __init__(self, job: Job, worker: str, token: int, steps: list[Step]) -> None:
        self.job = job
        self.worker = worker
        self.token = token
        self.steps = steps

    def followed_by(self, trail: Trail) -> Trail:
        """With the moves that came next."""
        return Trail(self.job, self.worker, self.token, self.steps + trail.steps)

    def moves(self) -> list[Move]:
        """Each with all that is to be said of it."""
        job = self.job
        who = (job.job_id, job.job_type, job.tenant, job.queue, self.worker, job.attempt, job.hop, self.token)
        return [Move(*who, *step) for step in self.steps]


class BreakerChange(NamedTuple):
    """A breaker came into another state. An empty tenant means all of them; `queue` is empty where a person did it.

    `by` is the worker or the person; `reason` why it is, or was, open; `opened` how often it has opened so far. `at` is in epoch
    seconds.
    """

    job_type: str
    tenant: str
    queue: str
    previous: str
    state: str
    reason: str
    by: str
    at: float
    opened: int


def breaker_change(key: BreakerKey, before: Circuit, after: Circuit, *, queue: str) -> BreakerChange:
    return BreakerChange(
        key.job_type,
        key.tenant,
        queue,
        before.state,
        after.state,
        after.reason or before.reason,
        after.by,
        after.changed_at,
        after.opened,
    )


_RUNNING: Final = JobState.RUNNING

# How a job came from the state of its row to `queued`, before the worker claimed it.
_TO_QUEUED: Final[dict[JobState | None, Transition]] = {
    None: path(JobState.PENDING, (Trigger.ENQUEUE,))[0],
    JobState.RETRYING: path(JobState.RETRYING, (Trigger.RETRY_READY,))[0],
    JobState.DEAD: path(JobState.DEAD, (Trigger.REPLAY,))[0],
    JobState.RUNNING: path(JobState.RUNNING, (Trigger.LEASE_EXPIRED,))[0],
}
_TO_RUNNING: Final = path(JobState.QUEUED, (Trigger.WORKER_CLAIMED,))[0]


def trail_of_claim(job: Job, claim: Claim, *, worker: str, at: float) -> Trail:
    """The moves that a granted claim stands for: into `queued`, then into `running`."""
    known = claim.state
    before, trigger, queued = _TO_QUEUED[known]
    free, claimed, running = _TO_RUNNING
    return Trail(
        job,
        worker,
        claim.token,
        [
            (before, trigger, queued, job.enqueued_at if known is None else at, None, claim.previous, ""),
            (free, claimed, running, at, None, "", ""),
        ],
    )


# The last move into a state that a record can be found in when it comes again.
_LAST_MOVE: Final = {
    JobState.COMPLETED: path(JobState.RUNNING, (Trigger.SUCCESS,))[0],
    JobState.CANCELLED: path(JobState.RUNNING, (Trigger.CANCEL,))[0],
    JobState.RETRYING: path(JobState.FAILED, (Trigger.RETRY_SCHEDULED,))[0],
    JobState.DEAD: path(JobState.FAILED, (Trigger.MAX_RETRIES_EXCEEDED,))[0],
}
TOLD_AGAIN = "told again: the worker ended before its offset was committed"


def trail_of_repeat(job: Job, claim: Claim, *, worker: str, at: float) -> Trail | None:
    """What to tell when a settled record comes again: the event of its last move may never have been written."""
    if not claim.repeated or claim.state not in _LAST_MOVE:
        return None
    before, trigger, state = _LAST_MOVE[claim.state]
    return Trail(job, worker, claim.token, [(before, trigger, state, at, None, TOLD_AGAIN, "")])


def trail_of_decision(
    job: Job,
    decision: Finish | RunLater | DeadLetter,
    *,
    worker: str,
    token: int,
    started_at: float,
    finished_at: float,
) -> Trail:
    """The moves from `running` that a settled decision made."""
    reason, error_class = _why(decision)
    duration = finished_at - started_at
    steps: list[Step] = []
    for before, trigger, state in path(_RUNNING, decision.triggers):
        steps.append((before, trigger, state, finished_at, duration, reason, error_class))
    return Trail(job, worker, token, steps)


def _why(decision: Finish | RunLater | DeadLetter) -> tuple[str, str]:
    if isinstance(decision, Finish):
        return decision.reason, ""
    if isinstance(decision, DeadLetter):
        return decision.reason, decision.failure.error_class
    return decision.reason, decision.failure.error_class if decision.failure is not None else ""
