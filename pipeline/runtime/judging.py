"""What only the error itself can tell, judged where it was raised: in the worker or in a child, before it becomes text."""

from __future__ import annotations

from typing import Any

from pipeline.core.backoff import Backoff
from pipeline.core.job import Job
from pipeline.core.job_type import JobType
from pipeline.core.outcome import Failed, Outcome

__all__ = ["judged"]


def judged(outcome: Outcome, error: BaseException, job_type: JobType[Any], job: Job) -> Outcome:
    """The outcome of an attempt that this error ended, with what the declaration of the job type makes of the error."""
    if not isinstance(outcome, Failed):
        return outcome
    breaker = job_type.breaker
    if breaker is not None and not breaker.counts(error):
        outcome = outcome._replace(counts=False)
    return _with_wait(outcome, error, job_type, job)


def _with_wait(outcome: Failed, error: BaseException, job_type: JobType[Any], job: Job) -> Failed:
    """With the delay that the policy's `wait` gives to the error, unless the handler named one.

    What goes wrong in there is met, and told, when the delay is asked for again at the decision.
    """
    policy = job_type.retry
    if outcome.retry_after is not None or not isinstance(policy, Backoff) or policy.wait is None:
        return outcome
    try:
        return outcome._replace(retry_after=policy.delay_after(error, job.attempt))
    except Exception:  # noqa: BLE001 - a user's own function; see above
        return outcome
