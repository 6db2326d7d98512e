"""A delivery as an order to a child process, and what the end of the child's run means for the job."""

from __future__ import annotations

import logging

from pipeline.core.clock import Clock
from pipeline.core.job import Source
from pipeline.core.outcome import Crashed, Failure, Outcome
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.executors.base import SUCCEEDED, timed_out
from pipeline.runtime.executors.remote import Answered, Ending, Exhausted, Overran, Unstarted, Vanished
from pipeline.runtime.executors.wire import JobOrder, pack_job
from pipeline.runtime.handlers import ASYNC

__all__ = ["limit_of", "order_for", "outcome_of_ending"]

CANCEL_GRACE = 2.0  # seconds that a coroutine gets to end after it was cancelled in the child

log = logging.getLogger("pipeline.executor")


def order_for(delivery: Delivery, clock: Clock) -> bytes:
    """The payload goes as it came: the child decodes it."""
    source = Source(*delivery.partition, delivery.record.offset)
    now, at = clock.time(), clock.monotonic()
    value = delivery.record.value or b""
    return pack_job(JobOrder(delivery.job, source, delivery.token, now, at, value))


def limit_of(delivery: Delivery) -> float | None:
    """After how many seconds the child is killed."""
    assert delivery.handler is not None
    limit = delivery.handler.job_type.timeout
    return limit + CANCEL_GRACE if limit is not None and delivery.handler.lane == ASYNC else limit


def outcome_of_ending(delivery: Delivery, ending: Ending, seconds: float) -> Outcome:
    """What a run of so many seconds gave. A job that its own transaction has completed stays completed."""
    if isinstance(ending, Answered):
        return ending.outcome
    if isinstance(ending, Overran):
        _tell(delivery, "the time limit came", action="child_overran")
        return SUCCEEDED if delivery.committed else timed_out(delivery, seconds)
    failure = _failure(ending)
    _tell(delivery, failure.message, action="child_died")
    return SUCCEEDED if delivery.committed else Crashed(failure, delivery.crashes + 1)


def _failure(ending: Exhausted | Vanished | Unstarted) -> Failure:
    if isinstance(ending, Exhausted):
        message = ending.failure.message or "the process in which the job ran alone may have no more memory"
        return ending.failure._replace(message=message)
    return Failure("ProcessDied", f"the process in which the job ran alone {ending.how}")


def _tell(delivery: Delivery, why: str, *, action: str) -> None:
    log.error(
        "child process lost with its job: %s",
        why,
        extra={
            "action": action,
            "job_id": delivery.job.job_id,
            "job_type": delivery.job.job_type,
            "crashes_before": delivery.crashes,
            "committed": delivery.committed,
        },
    )
