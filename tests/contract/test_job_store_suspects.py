"""Jobs that may have killed their worker, in every job store: who is suspected, and that it is never forgotten."""

from __future__ import annotations

import pytest

from pipeline.core.claims import Claim, Settlement, Verdict
from pipeline.core.outcome import Failure
from pipeline.core.state import JobState
from tests.contract.stores import Store, beat, claim_one, claimed, died, ended, failed, kill, request

DIED = Failure("ProcessDied", "the process in which the job ran alone was killed by SIGSEGV")


def crashed(job_id: str, *, token: int, hop: int) -> Settlement:
    return failed(job_id, token=token, hop=hop)._replace(failure=DIED, crashed=True)


def crashes_of(store: Store, job_id: str) -> int | None:
    story = store.job(job_id)
    assert story is not None
    return story.crashes


def suspected(store: Store) -> str:
    """A job that was running on `a` when that died, and runs on `b` now."""
    job_id = claimed(store)
    kill(store, "a")
    assert claim_one(store, "b", request(job_id)).crashes == 0
    return job_id


def test_a_job_that_was_running_on_a_worker_that_died_is_a_suspect(store: Store) -> None:
    job_id = claimed(store)
    kill(store, "a")
    claim = claim_one(store, "b", request(job_id))
    assert claim == Claim(Verdict.CLAIMED, 2, JobState.RUNNING, "a", crashes=0)
    assert crashes_of(store, job_id) == 0


def test_a_job_that_a_worker_left_behind_in_order_is_none(store: Store) -> None:
    job_id = claimed(store)
    store.leave("a")
    assert claim_one(store, "b", request(job_id)).crashes is None


def test_a_job_whose_claim_was_answered_too_late_is_none(store: Store) -> None:
    job_id = claimed(store)
    assert claim_one(store, "a", request(job_id)).crashes is None


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_retry_is_none_unless_the_job_was_one_before(store: Store, *, seen_before: bool) -> None:
    job_id = suspected(store) if seen_before else claimed(store, "b")
    assert store.settle("b", [failed(job_id, token=1 + seen_before)])[0].accepted
    assert claim_one(store, "c", request(job_id, hop=1)).crashes == (0 if seen_before else None)


def test_a_suspect_stays_one_when_the_next_worker_leaves_in_order(store: Store) -> None:
    """It was perhaps never run there: cleared by that, it would kill a second worker."""
    job_id = suspected(store)
    store.leave("b")
    assert claim_one(store, "c", request(job_id)).crashes == 0


def test_a_suspect_stays_one_when_the_answer_to_its_claim_was_lost(store: Store) -> None:
    job_id = suspected(store)
    assert claim_one(store, "b", request(job_id)) == Claim(Verdict.CLAIMED, 3, JobState.RUNNING, crashes=0)


def test_deaths_of_its_own_are_counted(store: Store) -> None:
    job_id = suspected(store)
    for _ in range(2):  # the second answer is to the same settlement: nothing is counted twice
        assert store.settle("b", [crashed(job_id, token=2, hop=1)])[0].accepted
    assert claim_one(store, "c", request(job_id, hop=1)).crashes == 1
    dead = died(job_id, token=3, hop=1)._replace(reason="poison", failure=DIED, crashed=True)
    assert store.settle("c", [dead])[0].accepted
    assert crashes_of(store, job_id) == 2


def test_the_first_death_of_its_own_makes_a_suspect_where_no_worker_died(store: Store) -> None:
    job_id = claimed(store)
    ended(store, crashed(job_id, token=1, hop=1))
    assert claim_one(store, "b", request(job_id, hop=1)).crashes == 1


def test_a_refused_settlement_counts_no_death(store: Store) -> None:
    job_id = suspected(store)
    assert not store.settle("a", [crashed(job_id, token=1, hop=1)])[0].accepted
    assert crashes_of(store, job_id) == 0


def test_a_replay_is_run_as_carefully_as_before(store: Store) -> None:
    job_id = suspected(store)
    assert store.settle("b", [died(job_id, token=2)._replace(crashed=True)])[0].accepted
    beat(store, "a")
    assert claim_one(store, "a", request(job_id, hop=1)).crashes == 1
