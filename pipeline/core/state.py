"""The life of a job as one table.

    pending --enqueue--> queued --worker_claimed--> running --success--> completed
       |                   ^ ^ ^                     | |  |
       schedule            | | +--lease_expired------+ |  +--snoozed--> retrying
       v                   | |                         |                  |
    scheduled-timer_fired--+ +--retry_ready-- retrying |error             |
                                                 ^     v                  |
                                                 |   failed               |
                                  retry_scheduled+---- | max_retries_exceeded / rejected
                                                       v                  |
                            queued <--replay-- dead <--+------------------+ max_retries_exceeded

Any unfinished state --cancel--> cancelled. Each move names who makes it:

- `schedule`, `enqueue`: the publisher. `timer_fired`: the scheduler.
- `worker_claimed`: a worker that was granted the claim. `retry_ready`: the same, for a record whose wait is over.
- `lease_expired`: a worker that takes over from one that died or left.
- `success`, `error`, `snoozed`, `retry_scheduled`, `max_retries_exceeded`, `rejected`: the worker that settles.
- `replay`: an operator. `cancel`: an operator, or the handler itself.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Final

from pipeline.errors import PipelineError

__all__ = ["TRANSITIONS", "UNFINISHED", "IllegalMove", "JobState", "Transition", "Trigger", "move", "path"]


class JobState(StrEnum):
    __hash__ = (
        str.__hash__
    )  # an enum's own is a call into Python, and states are keys on the path of every job

    PENDING = "pending"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Trigger(StrEnum):
    __hash__ = str.__hash__

    SCHEDULE = "schedule"
    ENQUEUE = "enqueue"
    TIMER_FIRED = "timer_fired"
    WORKER_CLAIMED = "worker_claimed"
    LEASE_EXPIRED = "lease_expired"
    SUCCESS = "success"
    ERROR = "error"
    SNOOZED = "snoozed"
    RETRY_SCHEDULED = "retry_scheduled"
    RETRY_READY = "retry_ready"
    MAX_RETRIES_EXCEEDED = "max_retries_exceeded"
    REJECTED = "rejected"
    REPLAY = "replay"
    CANCEL = "cancel"


UNFINISHED = frozenset(
    {
        JobState.PENDING,
        JobState.SCHEDULED,
        JobState.QUEUED,
        JobState.RUNNING,
        JobState.FAILED,
        JobState.RETRYING,
    }
)

TRANSITIONS: Final[dict[tuple[JobState, Trigger], JobState]] = {
    (JobState.PENDING, Trigger.SCHEDULE): JobState.SCHEDULED,
    (JobState.PENDING, Trigger.ENQUEUE): JobState.QUEUED,
    (JobState.SCHEDULED, Trigger.TIMER_FIRED): JobState.QUEUED,
    (JobState.QUEUED, Trigger.WORKER_CLAIMED): JobState.RUNNING,
    (JobState.RUNNING, Trigger.LEASE_EXPIRED): JobState.QUEUED,
    (JobState.RUNNING, Trigger.SUCCESS): JobState.COMPLETED,
    (JobState.RUNNING, Trigger.ERROR): JobState.FAILED,
    (JobState.RUNNING, Trigger.SNOOZED): JobState.RETRYING,
    (JobState.FAILED, Trigger.RETRY_SCHEDULED): JobState.RETRYING,
    (JobState.FAILED, Trigger.MAX_RETRIES_EXCEEDED): JobState.DEAD,
    (JobState.FAILED, Trigger.REJECTED): JobState.DEAD,
    (JobState.RETRYING, Trigger.RETRY_READY): JobState.QUEUED,
    (JobState.RETRYING, Trigger.MAX_RETRIES_EXCEEDED): JobState.DEAD,
    (JobState.DEAD, Trigger.REPLAY): JobState.QUEUED,
    **{(state, Trigger.CANCEL): JobState.CANCELLED for state in UNFINISHED},
}


Transition = tuple[JobState, Trigger, JobState]  # from, by, to


class IllegalMove(PipelineError):
    """A move that the table of states does not have."""


def move(state: JobState, trigger: Trigger) -> JobState:
    """Give the state that `trigger` leads to; raise `IllegalMove` when the table has no such move."""
    try:
        return TRANSITIONS[(state, trigger)]
    except KeyError:
        allowed = sorted(t.value for s, t in TRANSITIONS if s is state)
        raise IllegalMove(
            f"a {state} job cannot move by {trigger}; allowed: {', '.join(allowed) or 'none'}"
        ) from None


@lru_cache(maxsize=256)
def path(state: JobState, triggers: tuple[Trigger, ...]) -> tuple[Transition, ...]:
    """The moves that these triggers make one after the other. Remembered: there are few, and each job asks."""
    moves: list[Transition] = []
    for trigger in triggers:
        following = move(state, trigger)
        moves.append((state, trigger, following))
        state = following
    return tuple(moves)
