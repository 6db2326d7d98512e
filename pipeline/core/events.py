"""Lifecycle events: each move of a job, and each change of a breaker, as a value. They go to the events topic and to the log."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.core.breaker import BreakerKey, Circuit
from pipeline.core.claims import Claim
from pipeline.core.decision import DeadLetter, Decision, Finish, LetGo, RunLater
from pipeline.core.job import Job
from pipeline.core.state import JobState, Trigger, move

__all__ = [
    "BreakerChange",
    "Move",
    "breaker_change",
    "moves_of_claim",
    "moves_of_decision",
    "moves_of_repeat",
]


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


# How a job came from the state of its row to `queued`, before the worker claimed it.
_TO_QUEUED = {
    None: (JobState.PENDING, Trigger.ENQUEUE),
    JobState.RETRYING: (JobState.RETRYING, Trigger.RETRY_READY),
    JobState.DEAD: (JobState.DEAD, Trigger.REPLAY),
    JobState.RUNNING: (JobState.RUNNING, Trigger.LEASE_EXPIRED),
}


def moves_of_claim(job: Job, claim: Claim, *, worker: str, at: float) -> list[Move]:
    """The moves that a granted claim stands for: into `queued`, then into `running`."""
    state, trigger = _TO_QUEUED[claim.state]
    job_id, job_type, tenant, queue, attempt, hop = job[0], job[1], job[2], job[3], job.attempt, job.hop
    token = claim.token
    queued_at = job.enqueued_at if claim.state is None else at
    return [
        Move(
            job_id,
            job_type,
            tenant,
            queue,
            worker,
            attempt,
            hop,
            token,
            state,
            trigger,
            move(state, trigger),
            queued_at,
            None,
            claim.previous,
        ),
        Move(
            job_id,
            job_type,
            tenant,
            queue,
            worker,
            attempt,
            hop,
            token,
            JobState.QUEUED,
            Trigger.WORKER_CLAIMED,
            JobState.RUNNING,
            at,
        ),
    ]


# The last move into a state that a record can be found in when it comes again.
_LAST_MOVE = {
    JobState.COMPLETED: (JobState.RUNNING, Trigger.SUCCESS),
    JobState.CANCELLED: (JobState.RUNNING, Trigger.CANCEL),
    JobState.RETRYING: (JobState.FAILED, Trigger.RETRY_SCHEDULED),
    JobState.DEAD: (JobState.FAILED, Trigger.MAX_RETRIES_EXCEEDED),
}
TOLD_AGAIN = "told again: the worker ended before its offset was committed"


def moves_of_repeat(job: Job, claim: Claim, *, worker: str, at: float) -> list[Move]:
    """What to tell when a settled record comes again: the event of its last move may never have been written."""
    if not claim.repeated or claim.state not in _LAST_MOVE:
        return []
    state, trigger = _LAST_MOVE[claim.state]
    identity = (job.job_id, job.job_type, job.tenant, job.queue, worker, job.attempt, job.hop, claim.token)
    return [Move(*identity, state, trigger, move(state, trigger), at, None, TOLD_AGAIN)]


def moves_of_decision(
    job: Job, decision: Decision, *, worker: str, token: int, started_at: float, finished_at: float
) -> list[Move]:
    """The moves from `running` that a settled decision made."""
    if isinstance(decision, LetGo):
        return []
    reason, error_class = _why(decision)
    state = JobState.RUNNING
    moves = []
    for trigger in decision.triggers:
        following = move(state, trigger)
        moves.append(
            Move(
                job.job_id,
                job.job_type,
                job.tenant,
                job.queue,
                worker,
                job.attempt,
                job.hop,
                token,
                state,
                trigger,
                following,
                finished_at,
                finished_at - started_at,
                reason,
                error_class,
            )
        )
        state = following
    return moves


def _why(decision: Decision) -> tuple[str, str]:
    if isinstance(decision, Finish):
        return decision.reason, ""
    if isinstance(decision, DeadLetter):
        return decision.reason, decision.failure.error_class
    if isinstance(decision, RunLater):
        return decision.reason, decision.failure.error_class if decision.failure is not None else ""
    return "", ""
