"""Retries in place, in every job store: the same record is claimed again, for a job type that runs in order, by key."""

from __future__ import annotations

import pytest

from pipeline.core.claims import Claim, Settled, Settlement, Verdict
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from tests.contract.stores import (
    Store,
    claim_one,
    claimed,
    died,
    ended,
    failed,
    kill,
    request,
    settlement,
)

PAST, FUTURE = 1_700_000_060.0, 4_000_000_000.25


def failed_in_place(
    job_id: str, *, token: int = 1, due_at: float = PAST, next_attempt: int = 2
) -> Settlement:
    ran = failed(job_id, token=token, hop=0)
    return ran._replace(attempt=next_attempt - 1, next_attempt=next_attempt, due_at=due_at)


def test_the_same_record_is_granted_with_the_attempt_that_the_row_knows(store: Store) -> None:
    job_id = claimed(store)
    ended(store, failed_in_place(job_id))
    again = claim_one(store, "b", request(job_id))
    assert again == Claim(Verdict.CLAIMED, 2, JobState.RETRYING, attempt=2)
    assert store.settle("b", [failed_in_place(job_id, token=2, next_attempt=3)])[0].accepted
    assert claim_one(store, "c", request(job_id)).attempt == 3
    story = store.job(job_id)
    assert story is not None
    assert (story.state, story.attempt, story.hop) == (JobState.RUNNING, 3, 0)
    assert [(a.outcome, a.attempt) for a in story.attempts] == [
        (AttemptOutcome.FAILED, 1),
        (AttemptOutcome.FAILED, 2),
    ]


def test_it_is_held_until_it_is_due(store: Store) -> None:
    job_id = claimed(store)
    ended(store, failed_in_place(job_id, due_at=FUTURE))
    for worker in ("a", "b"):
        claim = claim_one(store, worker, request(job_id))
        assert claim._replace(due_at=0.0) == Claim(Verdict.HELD, 0, JobState.RETRYING)
        assert claim.due_at == pytest.approx(FUTURE)


def test_a_worker_that_dies_in_a_later_attempt_costs_none(store: Store) -> None:
    job_id = claimed(store)
    ended(store, failed_in_place(job_id))
    assert claim_one(store, "b", request(job_id)).attempt == 2
    kill(store, "b")
    rescued = claim_one(store, "c", request(job_id))
    assert rescued == Claim(Verdict.CLAIMED, 3, JobState.RUNNING, "b", attempt=2, crashes=0)


def test_a_snooze_costs_no_attempt(store: Store) -> None:
    job_id = claimed(store)
    ended(store, settlement(job_id, JobState.RETRYING, due_at=PAST, next_attempt=1))
    assert claim_one(store, "b", request(job_id)) == Claim(Verdict.CLAIMED, 2, JobState.RETRYING)


def test_a_replay_begins_its_attempts_anew(store: Store) -> None:
    job_id = claimed(store)
    ended(store, failed_in_place(job_id))
    claim_one(store, "a", request(job_id))
    ended(store, died(job_id, token=2)._replace(attempt=2))
    replayed = claim_one(store, "b", request(job_id, hop=1, offset=9))
    assert replayed == Claim(Verdict.CLAIMED, 3, JobState.DEAD)


def test_settling_again_is_accepted(store: Store) -> None:
    job_id = claimed(store)
    for _ in range(2):
        assert store.settle("a", [failed_in_place(job_id)]) == [Settled(True, 1)]
