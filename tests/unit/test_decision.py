"""Decisions: every outcome has exactly one, and attempts are counted exactly."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.backoff import Backoff, Random
from pipeline.core.decision import (
    MOST_CRASHES,
    DeadLetter,
    Decision,
    Finish,
    LetGo,
    RunLater,
    decide,
    in_place,
)
from pipeline.core.events import trail_of_decision
from pipeline.core.job import EPOCH_LIMIT, Job
from pipeline.core.outcome import (
    Cancelled,
    Crashed,
    Failed,
    Failure,
    Lost,
    Outcome,
    Rejected,
    Snoozed,
    Succeeded,
)
from pipeline.core.state import JobState, Trigger, move

NOW = 1_800_000_000.0
TIERS = (10.0, 60.0, 600.0)
JOB = Job("0198c3a2-0000-7000-8000-000000000001", "email.send", "acme", "default")
FAILURE = Failure("ValueError", "no")
POLICY = Backoff(max_attempts=3, base=20, multiplier=10, cap=3600, jitter=0)

DELAYS = st.floats(0, 1e12)
OUTCOMES = st.one_of(
    st.just(Succeeded()),
    st.just(Lost()),
    st.builds(Failed, st.just(FAILURE), st.none() | DELAYS, st.booleans()),
    st.builds(Crashed, st.just(FAILURE), st.integers(1, 5)),
    st.builds(Rejected, st.just(FAILURE), st.sampled_from(["rejected", "undecodable"])),
    st.builds(Snoozed, DELAYS, st.none()) | st.builds(Snoozed, st.none(), DELAYS),
    st.builds(Cancelled, st.text(max_size=5)),
)


class Fixed:
    """A retry policy of an application: any object with these two."""

    max_attempts = 3

    def __init__(self, delay: float) -> None:
        self._delay = delay

    def delay(self, _attempt: int, _rng: Random) -> float:
        return self._delay


def decided(outcome: Outcome, *, attempt: int = 1, policy: Backoff | Fixed = POLICY) -> Decision:
    job = JOB._replace(attempt=attempt)
    return decide(job, outcome, policy, tiers=TIERS, now=NOW, rng=random.Random(1))


def later(outcome: Outcome, *, attempt: int = 1, policy: Backoff | Fixed = POLICY) -> RunLater:
    decision = decided(outcome, attempt=attempt, policy=policy)
    assert isinstance(decision, RunLater)
    return decision


def test_success_finishes_the_job() -> None:
    assert decided(Succeeded()) == Finish(JobState.COMPLETED, (Trigger.SUCCESS,))


def test_a_failure_waits_in_the_smallest_tier_that_is_not_shorter() -> None:
    first, second = later(Failed(FAILURE)), later(Failed(FAILURE), attempt=2)
    assert (first.tier, first.due_at, first.attempt, first.failure) == (60.0, NOW + 20, 2, FAILURE)
    assert (second.tier, second.due_at, second.attempt) == (600.0, NOW + 200, 3)


def test_a_first_death_of_its_own_is_a_failed_attempt() -> None:
    decision = later(Crashed(FAILURE, crashes=1))
    assert (decision.due_at, decision.attempt, decision.failure) == (NOW + 20, 2, FAILURE)
    last = decided(Crashed(FAILURE, crashes=1), attempt=3)
    assert isinstance(last, DeadLetter)
    assert last.reason == "max_attempts"


def test_the_second_death_of_its_own_makes_it_poison_whatever_attempts_are_left() -> None:
    decision = decided(Crashed(FAILURE, crashes=MOST_CRASHES))
    assert decision == DeadLetter("poison", FAILURE, (Trigger.ERROR, Trigger.REJECTED))


def test_a_delay_of_its_own_replaces_that_of_the_policy_but_not_the_limit_of_attempts() -> None:
    decision = later(Failed(FAILURE, retry_after=5))
    assert (decision.tier, decision.due_at) == (10.0, NOW + 5)
    assert isinstance(decided(Failed(FAILURE, retry_after=5), attempt=3), DeadLetter)


def test_a_delay_of_a_tier_goes_to_that_tier_whatever_the_time_is() -> None:
    """Not to the next one because of a rounding error."""
    for now in (NOW + 0.1, NOW + 0.123456, 1e9 / 3):
        decision = decide(JOB, Failed(FAILURE), Fixed(10), tiers=TIERS, now=now, rng=random.Random(1))
        assert isinstance(decision, RunLater)
        assert decision.tier == 10.0


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_job_that_always_fails_runs_exactly_max_attempts_times(most: int) -> None:
    policy = Backoff(max_attempts=most)
    job, runs = JOB, 1
    while isinstance(
        decision := decide(job, Failed(FAILURE), policy, tiers=TIERS, now=NOW, rng=random.Random(1)), RunLater
    ):
        job, runs = job._replace(attempt=decision.attempt), runs + 1
    assert runs == most
    assert decision == DeadLetter("max_attempts", FAILURE, (Trigger.ERROR, Trigger.MAX_RETRIES_EXCEEDED))


def test_an_attempt_beyond_the_limit_is_the_last_one() -> None:
    """The limit was lowered, or the header was made up."""
    assert isinstance(decided(Failed(FAILURE), attempt=1_000_000), DeadLetter)


def test_a_failure_names_why_its_letter_is_one() -> None:
    assert decided(Failed(FAILURE, reason="unknown_schema"), attempt=3) == DeadLetter(
        "unknown_schema", FAILURE, (Trigger.ERROR, Trigger.MAX_RETRIES_EXCEEDED)
    )
    assert decided(Failed(FAILURE, permanent=True)) == DeadLetter(
        "permanent", FAILURE, (Trigger.ERROR, Trigger.REJECTED)
    )
    assert decided(Rejected(FAILURE, "undecodable")) == DeadLetter(
        "undecodable", FAILURE, (Trigger.ERROR, Trigger.REJECTED)
    )


def test_a_cancelled_job_leaves_no_letter() -> None:
    assert decided(Cancelled("withdrawn")) == Finish(JobState.CANCELLED, (Trigger.CANCEL,), "withdrawn")


def test_a_lost_run_decides_nothing() -> None:
    assert decided(Lost()) == LetGo()


@pytest.mark.parametrize("attempt", [1, 3, 99])
def test_a_snooze_burns_no_attempt_not_even_the_last(attempt: int) -> None:
    decision = later(Snoozed(30, None), attempt=attempt)
    assert (decision.attempt, decision.due_at, decision.tier, decision.failure) == (
        attempt,
        NOW + 30,
        60.0,
        None,
    )


def test_a_snooze_until_a_time_is_due_at_that_time() -> None:
    assert later(Snoozed(None, NOW + 0.1)).due_at == NOW + 0.1
    past = later(Snoozed(None, NOW - 100))
    assert (past.due_at, past.tier) == (NOW, 10.0)


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_whatever_delay_a_policy_gives_the_due_time_can_be_read_again(delay: float) -> None:
    """A time that no header can carry would turn the retry into a malformed record: dead after one failure."""
    decision = later(Failed(FAILURE), policy=Fixed(delay))
    assert NOW <= decision.due_at < EPOCH_LIMIT
    assert decision.tier in TIERS


@given(outcome=OUTCOMES, attempt=st.integers(1, 10), delay=st.floats())
def test_every_outcome_has_exactly_one_decision_and_its_moves_are_allowed(
    outcome: Outcome, attempt: int, delay: float
) -> None:
    decision = decided(outcome, attempt=attempt, policy=Fixed(delay))
    if isinstance(decision, LetGo):
        assert isinstance(outcome, Lost)
        return
    state = JobState.RUNNING
    for trigger in decision.triggers:
        state = move(state, trigger)
    assert state is decision.state
    if isinstance(decision, RunLater):
        assert NOW <= decision.due_at < EPOCH_LIMIT
        assert decision.attempt == attempt + isinstance(outcome, Failed | Crashed)


@given(outcome=OUTCOMES)
def test_the_moves_of_a_decision_follow_each_other(outcome: Outcome) -> None:
    decision = decided(outcome)
    if isinstance(decision, LetGo):  # then nothing has moved
        return
    trail = trail_of_decision(JOB, decision, worker="w", token=7, started_at=NOW, finished_at=NOW + 2)
    moves = trail.moves()
    assert [each.previous for each in moves] == [JobState.RUNNING, *(each.state for each in moves[:-1])]
    assert moves[-1].state is decision.state
    assert all((each.token, each.worker, each.duration) == (7, "w", 2.0) for each in moves)


def placed(wait: float, *, age: float = 0.0, failure: Failure | None = None) -> RunLater | DeadLetter:
    """A job in order that is to wait, whose record was written `age` seconds ago into a topic that keeps it for a day."""
    waiting = RunLater(600.0, NOW + wait, 2, failure, ())
    return in_place(waiting, written_at=NOW - age, kept=86_400, now=NOW, tiers=TIERS)


@pytest.mark.parametrize(("wait", "age"), [(0, 0), (86_400, 0), (3_600, 82_800), (600, 1e6)])
def test_a_job_in_order_waits_where_its_record_is_kept_or_no_longer_than_a_retry_may(
    wait: float, age: float
) -> None:
    found = placed(wait, age=age)
    assert isinstance(found, RunLater)
    assert found.in_place
    assert found.due_at == NOW + wait


@pytest.mark.parametrize(("wait", "age"), [(86_401, 0), (3_601, 82_800), (601, 1e6), (1e9, 0)])
def test_a_job_in_order_that_would_wait_until_its_record_is_deleted_is_dead(wait: float, age: float) -> None:
    found = placed(wait, age=age)
    assert isinstance(found, DeadLetter)
    assert found.reason == "waits_too_long"
    assert f"to run again in {wait:.0f} s" in found.failure.message
    assert "86400 s after that (topics.main_retention less retry.outage_allowance)" in found.failure.message


def test_what_failed_is_told_beside_why_it_may_not_wait() -> None:
    found = placed(1e6, failure=Failure("OSError", "no route", "the stack"))
    assert isinstance(found, DeadLetter)
    assert (found.failure.error_class, found.failure.stack) == ("OSError", "the stack")
    assert found.failure.message.startswith("no route (to run again in 1000000 s")
