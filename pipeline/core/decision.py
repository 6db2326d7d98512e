"""Outcome -> decision, as a value. Carried out elsewhere: the next record first, then the state, then the offset."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from pipeline.core.backoff import Backoff, Random, RetryPolicy, checked_delay, choose_tier
from pipeline.core.job import EPOCH_LIMIT, Job
from pipeline.core.outcome import (
    MAX_MESSAGE,
    Cancelled,
    Crashed,
    Failed,
    Failure,
    Lost,
    Outcome,
    Rejected,
    Snoozed,
    Succeeded,
    describe_failure,
    shorten,
)
from pipeline.core.state import JobState, Trigger

__all__ = ["COMPLETED", "DeadLetter", "Decision", "Finish", "LetGo", "RunLater", "decide", "in_place"]


class Finish(NamedTuple):
    """Nothing follows: the job is completed or cancelled."""

    state: JobState
    triggers: tuple[Trigger, ...]
    reason: str = ""


class RunLater(NamedTuple):
    """A record in the retry topic of `tier`, due at `due_at` (epoch seconds), for attempt number `attempt`.

    `in_place`: no record is written, the job waits where it is and keeps its place among the jobs of its key. `reason` says why
    it waits when neither its failure nor its handler does. With `until` it is not to run even then, but to wait on until that time.
    """

    tier: float
    due_at: float
    attempt: int
    failure: Failure | None
    triggers: tuple[Trigger, ...]
    state: JobState = JobState.RETRYING
    in_place: bool = False
    reason: str = ""
    until: float = 0.0


class DeadLetter(NamedTuple):
    """A record in the DLQ topic, for `reason`."""

    reason: str
    failure: Failure
    triggers: tuple[Trigger, ...]
    state: JobState = JobState.DEAD


class LetGo(NamedTuple):
    """Nothing is written: the record is judged again, and ends as a duplicate once the other run has ended."""


Decision = Finish | RunLater | DeadLetter | LetGo

COMPLETED: Final = Finish(JobState.COMPLETED, (Trigger.SUCCESS,))  # what a success always leads to
MOST_CRASHES = 2  # deaths of its own after which a job is not run again
WAITS_TOO_LONG = "waits_too_long"  # the reason of letters of jobs in order whose topic would not keep them
_DEFAULT = Backoff()


def decide(
    job: Job,
    outcome: Outcome,
    policy: RetryPolicy,
    *,
    tiers: Sequence[float],
    now: float,
    rng: Random,
    failing_since: float | None = None,
    longest_wait: float = inf,
) -> Decision:
    """What follows from a run that ended at `now` (epoch seconds). Every outcome has exactly one decision.

    `failing_since` is when the first attempt began that failed; None says that it is this one. No record waits in a topic for
    longer than `longest_wait` seconds: a longer wait is made of several.
    """
    decision = _decide(job, outcome, policy, tiers=tiers, now=now, rng=rng, failing_since=failing_since)
    if isinstance(decision, RunLater) and decision.due_at > now + longest_wait:
        return decision._replace(due_at=now + longest_wait, until=decision.due_at)
    return decision


def _decide(
    job: Job,
    outcome: Outcome,
    policy: RetryPolicy,
    *,
    tiers: Sequence[float],
    now: float,
    rng: Random,
    failing_since: float | None,
) -> Decision:
    if isinstance(outcome, Succeeded):
        return COMPLETED
    if isinstance(outcome, Crashed):
        if outcome.crashes >= MOST_CRASHES:
            return DeadLetter("poison", outcome.failure, (Trigger.ERROR, Trigger.REJECTED))
        outcome = Failed(outcome.failure)
    if isinstance(outcome, Failed):
        return _after_failure(
            job,
            outcome,
            policy,
            tiers=tiers,
            now=now,
            rng=rng,
            since=now if failing_since is None else failing_since,
        )
    if isinstance(outcome, Rejected):
        return DeadLetter(outcome.reason, outcome.failure, (Trigger.ERROR, Trigger.REJECTED))
    if isinstance(outcome, Cancelled):
        return Finish(JobState.CANCELLED, (Trigger.CANCEL,), outcome.reason)
    if isinstance(outcome, Lost):
        return LetGo()
    return _after_snooze(job, outcome, tiers=tiers, now=now)


def _after_failure(
    job: Job,
    outcome: Failed,
    policy: RetryPolicy,
    *,
    tiers: Sequence[float],
    now: float,
    rng: Random,
    since: float,
) -> Decision:
    if outcome.permanent:
        return DeadLetter("permanent", outcome.failure, (Trigger.ERROR, Trigger.REJECTED))
    if job.attempt >= _number(policy, "max_attempts", _DEFAULT.max_attempts):
        return _spent(outcome.reason, outcome.failure)
    delay, failure = _delay(job, outcome, policy, rng)
    if now + delay > since + _number(policy, "give_up_after", inf):
        return _spent("give_up_after", failure)
    return RunLater(
        tier=choose_tier(delay, tiers),
        due_at=_readable(now + delay, now),
        attempt=job.attempt + 1,
        failure=failure,
        triggers=(Trigger.ERROR, Trigger.RETRY_SCHEDULED),
    )


def _spent(reason: str, failure: Failure) -> DeadLetter:
    return DeadLetter(reason, failure, (Trigger.ERROR, Trigger.MAX_RETRIES_EXCEEDED))


def _number(policy: RetryPolicy, name: str, default: float) -> float:
    """A value of a policy, which may be a user's own object: what it lacks has a default."""
    try:
        value = getattr(policy, name, None)
    except Exception:  # noqa: BLE001 - a property that raises
        value = None
    return value if isinstance(value, int | float) else default


def _delay(job: Job, outcome: Failed, policy: RetryPolicy, rng: Random) -> tuple[float, Failure]:
    """Seconds to wait, and the failure of the attempt, which tells when the policy failed too."""
    if outcome.retry_after is not None:
        return outcome.retry_after, outcome.failure
    try:
        return checked_delay(policy.delay(job.attempt, rng)), outcome.failure
    except Exception as error:  # noqa: BLE001 - a policy of a user's own may raise anything: the worker must outlive it
        broken = describe_failure(error)
        note = (
            f"{outcome.failure.message} (and its retry policy failed: {broken.error_class}: {broken.message})"
        )
        return _DEFAULT.delay(job.attempt, rng), outcome.failure._replace(message=shorten(note, MAX_MESSAGE))


def _after_snooze(job: Job, outcome: Snoozed, *, tiers: Sequence[float], now: float) -> Decision:
    due_at = outcome.until if outcome.until is not None else now + (outcome.after or 0.0)
    return RunLater(
        tier=choose_tier(max(0.0, due_at - now), tiers),
        due_at=_readable(due_at, now),
        attempt=job.attempt,
        failure=None,
        triggers=(Trigger.SNOOZED,),
        reason=outcome.reason,
    )


def in_place(
    decision: RunLater, *, written_at: float, kept: float, now: float, tiers: Sequence[float]
) -> RunLater | DeadLetter:
    """Let the job wait where its record lies, in a main topic, which may delete it `kept` seconds after it was written.

    What would be due later than that is dead now: it can be replayed, and the next job of its key goes on. A wait that is no
    longer than the longest tier is always taken.
    """
    if decision.due_at <= max(written_at + kept, now + max(tiers)):
        return decision._replace(in_place=True)
    note = (
        f"to run again in {decision.due_at - now:.0f} s, {decision.due_at - written_at:.0f} s after its record was written; "
        f"allowed for a job that runs in order, and waits in its main topic: {kept:.0f} s after that "
        "(topics.main_retention less retry.outage_allowance)"
    )
    failure = decision.failure or Failure("pipeline.Snooze", "")
    text = f"{failure.message} ({note})" if failure.message else note
    return DeadLetter(
        WAITS_TOO_LONG,
        failure._replace(message=shorten(text, MAX_MESSAGE)),
        (Trigger.ERROR, Trigger.REJECTED),
    )


def _readable(due_at: float, now: float) -> float:
    """Any policy and any handler may name a time; one that no record can carry would make the job a malformed one."""
    return min(due_at, EPOCH_LIMIT - 1) if due_at > now else now  # NaN is not above anything
