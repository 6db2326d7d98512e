"""Waits that are longer than a record may lie in a topic are made of several, and end when they should."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.backoff import Backoff
from pipeline.core.decision import RunLater, decide
from pipeline.core.headers import parse_job
from pipeline.core.job import Job, Record
from pipeline.core.outcome import Failed, Failure, Outcome, Snoozed
from pipeline.runtime.onward import UNTIL, replay_record, retry_record, waits_until
from tests.unit.runtime_parts import NOW, delivery_of, new_job, record_of

FAILURE = Failure("ValueError", "no")


def later(job: Job, outcome: Outcome, *, now: float, longest: float) -> RunLater:
    policy = Backoff(base=5000, multiplier=1, cap=5000, jitter=0)
    decision = decide(
        job, outcome, policy, tiers=(10.0, 600.0), now=now, rng=random.Random(1), longest_wait=longest
    )
    assert isinstance(decision, RunLater)
    return decision


@given(longest=st.floats(1, 10_000), wait=st.floats(0, 1e6), failed=st.booleans())
def test_every_leg_is_short_enough_and_the_last_one_ends_at_the_time(
    longest: float,
    wait: float,
    failed: bool,  # noqa: FBT001
) -> None:
    record, now, legs = record_of(new_job()), NOW, 0
    wanted = NOW + (5000 if failed else wait)
    outcome: Outcome = Failed(FAILURE) if failed else Snoozed(None, wanted)
    while legs < 300:
        delivery = delivery_of(record)
        decision = later(delivery.job, outcome, now=now, longest=longest)
        assert decision.due_at <= now + longest * (1 + 1e-9) + 1e-3
        assert decision.attempt == 1 + failed
        written = retry_record(delivery, decision, topic="jobs.default.retry.10m", group="g", now=now)
        record = Record(written.topic, 0, legs, written.key, written.value, written.headers, now)
        assert parse_job(record, queue="default").job.attempt == 1 + failed
        now, legs = decision.due_at, legs + 1
        until = waits_until(record)
        if until <= now:
            break
        assert until >= wanted
        outcome = Snoozed(None, until)
    else:
        return  # a wait of very many legs
    assert wanted <= now <= wanted + 0.001 * (legs + 1)
    assert UNTIL not in dict(record.headers) or waits_until(record) <= now


def test_a_replay_does_not_wait_on() -> None:
    delivery = delivery_of(record_of(new_job()))
    decision = later(delivery.job, Snoozed(None, NOW + 1e6), now=NOW, longest=100)
    written = retry_record(delivery, decision, topic="jobs.default.retry.10m", group="g", now=NOW)
    assert UNTIL in dict(written.headers)
    letter = Record(written.topic, 0, 0, written.key, written.value, written.headers, NOW)
    assert UNTIL not in dict(replay_record(letter, delivery.job, topic="jobs.default.normal").headers)
