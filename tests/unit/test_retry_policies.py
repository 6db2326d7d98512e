"""Policies of the user's own: tenacity's wait objects, time limits over all attempts, and policies that are broken."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pipeline.core.backoff import LONGEST_WAIT, Backoff
from pipeline.core.decision import DeadLetter, Decision, RunLater, decide
from pipeline.core.headers import job_headers
from pipeline.core.job import Job, Record
from pipeline.core.job_type import JobType
from pipeline.core.outcome import MAX_MESSAGE, Crashed, Failed, Failure, Rejected, Succeeded
from pipeline.core.retry_state import RetryState
from pipeline.errors import ConfigError
from pipeline.runtime.judging import judged
from pipeline.runtime.onward import STARTED, failing_since

NOW = 1_800_000_000.0
JOB = Job("0198c3a2-0000-7000-8000-000000000001", "email.send", "acme", "default")
FAILURE = Failure("ValueError", "no")


class Mail(BaseModel):
    to: str


def declared(**policy: Any) -> JobType[Mail]:
    return JobType(name="email.send", model=Mail, retry=Backoff(**policy))


def after(policy: Any, *, attempt: int = 1, since: float | None = None) -> Decision:
    job = JOB._replace(attempt=attempt)
    return decide(
        job, Failed(FAILURE), policy, tiers=(10.0, 600.0), now=NOW, rng=random.Random(1), failing_since=since
    )


def delay(policy: Any, *, attempt: int = 1) -> float:
    decision = after(policy, attempt=attempt)
    assert isinstance(decision, RunLater), decision
    return decision.due_at - NOW


# --- tenacity


def test_a_wait_object_of_tenacity_gives_the_delay() -> None:
    policy = Backoff(max_attempts=9, wait=tenacity.wait_exponential(multiplier=3, max=100))
    assert [delay(policy, attempt=n) for n in (1, 2, 3, 7)] == [3, 6, 12, 100]


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [
        (tenacity.wait_fixed(7), 7, 7),
        (tenacity.wait_none(), 0, 0),
        (tenacity.wait_random(2, 4), 2, 4),
        (tenacity.wait_incrementing(start=5, increment=10), 25, 25),
        (tenacity.wait_random_exponential(multiplier=2, max=60), 0, 8),
        (tenacity.wait_exponential_jitter(max=60, jitter=1), 4, 5),
        (tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(2)), 2, 2),
        (tenacity.wait_fixed(1) + tenacity.wait_fixed(2), 3, 3),
        (tenacity.wait_exception(lambda _: 9.0), 9, 9),
    ],
)
def test_every_kind_of_wait_object_works(wait: Any, least: float, most: float) -> None:
    assert least <= delay(Backoff(wait=wait), attempt=3) <= most


@given(attempt=st.integers(1, 1000))
def test_a_wait_that_grows_without_end_is_cut(attempt: int) -> None:
    policy = Backoff(max_attempts=1000, wait=tenacity.wait_exponential())
    assert policy.delay(attempt, random.Random(1)) <= LONGEST_WAIT


def test_the_error_itself_is_asked_where_it_was_raised() -> None:
    def by_error(error: BaseException) -> float:
        return 300.0 if isinstance(error, ConnectionError) else 2.0

    job_type = declared(wait=tenacity.wait_exception(by_error))
    outcome = Failed(FAILURE)
    assert judged(outcome, ConnectionResetError(), job_type, JOB) == outcome._replace(retry_after=300.0)
    assert judged(outcome, ValueError(), job_type, JOB) == outcome._replace(retry_after=2.0)


def test_a_delay_that_the_handler_named_wins_over_the_wait() -> None:
    outcome = Failed(FAILURE, retry_after=1.0)
    assert judged(outcome, ValueError(), declared(wait=tenacity.wait_fixed(50)), JOB) is outcome


@pytest.mark.parametrize("outcome", [Succeeded(), Rejected(FAILURE), Crashed(FAILURE, 1)])
def test_what_is_no_failed_attempt_is_not_asked_about(outcome: Any) -> None:
    assert judged(outcome, ValueError(), declared(wait=tenacity.wait_fixed(50)), JOB) is outcome


def test_a_plain_function_of_the_state_is_a_wait_too() -> None:
    assert delay(Backoff(wait=lambda state: state.attempt_number * 10), attempt=4) == 40


def test_a_state_has_the_ended_attempt_as_a_finished_future() -> None:
    error = ValueError("no")
    state = RetryState(3, error)
    assert (state.attempt_number, state.outcome.failed, state.outcome.exception()) == (3, True, error)
    with pytest.raises(ValueError, match="no"):
        state.outcome.result()


# --- policies that are broken


def _raises(_state: Any) -> float:
    raise ZeroDivisionError("per zero")


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (lambda _: -1, "its delay is -1; allowed: seconds, 0 or more"),
        (lambda _: math.nan, "its delay is nan"),
        (lambda _: None, "its delay is of type NoneType; allowed: seconds as a number"),
        (lambda _: "10", "of type str"),
        (_raises, "ZeroDivisionError: per zero"),
        (lambda: 5, "TypeError"),
    ],
)
def test_a_broken_wait_fails_no_more_than_the_attempt_that_failed_anyway(wait: Any, told: str) -> None:
    decision = after(Backoff(wait=wait))
    assert isinstance(decision, RunLater)
    assert 4 <= decision.due_at - NOW <= 6  # the default: 5 s, with jitter
    assert decision.failure is not None
    assert decision.failure.error_class == "ValueError"
    assert decision.failure.message.startswith("no (and its retry policy failed: ")
    assert told in decision.failure.message
    outcome = Failed(FAILURE)
    assert judged(outcome, ValueError(), declared(wait=wait), JOB) == outcome


def test_what_a_broken_policy_says_is_bounded() -> None:
    def wordy(_state: Any) -> float:
        raise ValueError("x" * 10_000_000)

    decision = after(Backoff(wait=wordy))
    assert isinstance(decision, RunLater)
    assert decision.failure is not None
    assert len(decision.failure.message) < MAX_MESSAGE + 100


class Broken:
    """A policy of which nothing works."""

    @property
    def max_attempts(self) -> int:
        raise RuntimeError("no idea")

    def delay(self, _attempt: int, _rng: Any) -> float:
        raise RuntimeError("no idea")


def test_a_policy_of_which_nothing_works_is_replaced_by_the_default() -> None:
    assert isinstance(after(Broken(), attempt=4), RunLater)
    dead = after(Broken(), attempt=5)
    assert isinstance(dead, DeadLetter)
    assert dead.reason == "max_attempts"


def test_a_wait_that_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="retry policy: wait is 5; allowed: a wait_"):
        Backoff(wait=5)  # type: ignore[arg-type]


# --- give_up_after


def test_no_retry_is_due_later_than_the_limit_after_the_first_failing_attempt_began() -> None:
    policy = Backoff(max_attempts=100, base=10, multiplier=1, jitter=0, give_up_after=60)
    assert isinstance(after(policy, since=NOW - 50), RunLater)
    dead = after(policy, since=NOW - 50.001)
    assert isinstance(dead, DeadLetter)
    assert (dead.reason, dead.failure) == ("give_up_after", FAILURE)


@given(
    limit=st.floats(0, 1000), waited=st.floats(0, 2000), base=st.floats(0, 100), attempt=st.integers(1, 50)
)
def test_a_job_goes_on_exactly_while_both_limits_allow_it(
    limit: float, waited: float, base: float, attempt: int
) -> None:
    policy = Backoff(max_attempts=20, base=base, multiplier=1, jitter=0, give_up_after=limit)
    decision = after(policy, attempt=attempt, since=NOW - waited)
    expected = attempt < 20 and NOW + base <= NOW - waited + limit
    assert isinstance(decision, RunLater if expected else DeadLetter)


def test_the_count_starts_with_the_first_attempt_that_fails() -> None:
    policy = Backoff(base=10, jitter=0, give_up_after=10)
    assert isinstance(after(policy), RunLater)
    assert isinstance(after(Backoff(base=10, jitter=0, give_up_after=9)), DeadLetter)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_a_limit_that_makes_no_sense_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="retry policy: give_up_after is "):
        Backoff(give_up_after=value)


@pytest.mark.parametrize(
    ("value", "expected"), [(b"1700000000.250", 1_700_000_000.25), (b"x", 0.0), (b"inf", 0.0), (None, 0.0)]
)
def test_when_a_job_began_to_fail_is_read_from_its_record(value: bytes | None, expected: float) -> None:
    headers = [*job_headers(JOB, ce_time="2027-01-15T08:00:00Z"), (STARTED, value)]
    assert failing_since(Record("t", 0, 0, None, b"", headers, NOW)) == expected
    assert failing_since(Record("t", 0, 0, None, b"", headers[:-1], NOW)) == 0.0
