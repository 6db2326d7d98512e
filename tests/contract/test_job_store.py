"""What every job store does with claims and settlements: one suite for Postgres and for its twin in memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.core.claims import Claim, Settled, Verdict
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from pipeline.errors import StoreUnavailable
from tests.contract.stores import (
    FIRST,
    Store,
    beat,
    claim_one,
    claimed,
    died,
    ended,
    failed,
    kill,
    new_id,
    request,
    settlement,
    state_of,
)


class TestClaim:
    def test_a_job_without_a_row_is_granted_with_token_1(self, store: Store) -> None:
        assert claim_one(store, "a", request(new_id())) == FIRST

    def test_no_requests_give_no_answers(self, store: Store) -> None:
        assert store.claim("a", []) == []

    def test_answers_come_in_the_order_of_the_requests(self, store: Store) -> None:
        completed, retrying, running, fresh = claimed(store), claimed(store), claimed(store), new_id()
        ended(store, settlement(completed), failed(retrying))
        claims = store.claim(
            "b", [request(running), request(completed), request(fresh), request(retrying, hop=1)]
        )
        assert claims == [
            Claim(Verdict.HELD, 0, JobState.RUNNING),
            Claim(Verdict.DUPLICATE, 1, JobState.COMPLETED, repeated=True),
            FIRST,
            Claim(Verdict.CLAIMED, 2, JobState.RETRYING),
        ]

    @pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED])
    @pytest.mark.parametrize("hop", [0, 1])
    def test_a_job_that_ended_is_a_duplicate_whatever_the_hop(
        self, store: Store, state: JobState, hop: int
    ) -> None:
        job_id = claimed(store)
        ended(store, settlement(job_id, state))
        claim = claim_one(store, "b", request(job_id, hop=hop, offset=9))
        assert claim == Claim(Verdict.DUPLICATE, 0, state)

    def test_an_older_copy_of_a_retrying_job_is_a_duplicate(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, failed(job_id))
        assert claim_one(store, "b", request(job_id)).verdict is Verdict.DUPLICATE

    def test_a_retry_is_granted_with_the_next_token(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, failed(job_id))
        claim = claim_one(store, "b", request(job_id, hop=1, attempt=2))
        assert claim == Claim(Verdict.CLAIMED, 2, JobState.RETRYING)

    @pytest.mark.parametrize(
        ("hop", "verdict"), [(0, Verdict.DUPLICATE), (1, Verdict.DUPLICATE), (2, Verdict.CLAIMED)]
    )
    def test_a_dead_job_is_granted_only_to_a_replay(self, store: Store, hop: int, verdict: Verdict) -> None:
        job_id = claimed(store, hop=1)
        ended(store, died(job_id, hop=1))
        claim = claim_one(store, "b", request(job_id, hop=hop, offset=9))
        assert claim == Claim(verdict, 2 if verdict is Verdict.CLAIMED else 0, JobState.DEAD)

    @pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.RETRYING, JobState.DEAD])
    def test_the_record_of_the_last_run_is_told_apart_when_it_comes_again(
        self, store: Store, state: JobState
    ) -> None:
        job_id = claimed(store, offset=5)
        ended(store, settlement(job_id, state, hop=1 if state is JobState.RETRYING else 0))
        again, other = (claim_one(store, "b", request(job_id, offset=offset)) for offset in (5, 6))
        assert again == Claim(Verdict.DUPLICATE, 1, state, repeated=True)
        assert other == Claim(Verdict.DUPLICATE, 0, state)

    def test_the_same_record_of_a_job_that_runs_elsewhere_is_held(self, store: Store) -> None:
        job_id = claimed(store, offset=5)
        assert claim_one(store, "b", request(job_id, offset=5)).verdict is Verdict.HELD

    def test_a_newer_record_of_a_job_that_runs_elsewhere_is_held(self, store: Store) -> None:
        job_id = claimed(store)
        assert claim_one(store, "b", request(job_id, hop=1, offset=9)).verdict is Verdict.HELD

    def test_a_second_record_of_a_job_that_runs_elsewhere_is_a_duplicate(self, store: Store) -> None:
        job_id = claimed(store, offset=5)
        assert claim_one(store, "b", request(job_id, offset=6)).verdict is Verdict.DUPLICATE

    def test_an_older_copy_of_a_running_job_is_a_duplicate(self, store: Store) -> None:
        job_id = claimed(store, hop=1, offset=5)
        assert claim_one(store, "b", request(job_id, offset=5)).verdict is Verdict.DUPLICATE

    def test_a_job_is_taken_over_from_a_worker_whose_lease_is_over(self, store: Store) -> None:
        job_id = claimed(store)
        kill(store, "a")
        claim = claim_one(store, "b", request(job_id))
        assert claim == Claim(Verdict.CLAIMED, 2, JobState.RUNNING, "a", crashes=0)

    def test_a_job_is_taken_over_at_once_from_a_worker_that_left(self, store: Store) -> None:
        job_id = claimed(store)
        store.leave("a")
        assert claim_one(store, "b", request(job_id)) == Claim(Verdict.CLAIMED, 2, JobState.RUNNING, "a")

    def test_a_renewed_lease_keeps_a_job(self, store: Store) -> None:
        job_id = claimed(store)
        kill(store, "a")
        beat(store, "a")
        assert claim_one(store, "b", request(job_id)).verdict is Verdict.HELD

    def test_an_older_copy_is_a_duplicate_even_when_the_owner_is_gone(self, store: Store) -> None:
        job_id = claimed(store, hop=1)
        kill(store, "a")
        assert claim_one(store, "b", request(job_id)).verdict is Verdict.DUPLICATE

    def test_a_claim_whose_answer_was_lost_is_granted_again_with_the_next_token(self, store: Store) -> None:
        job_id = claimed(store)
        claim = claim_one(store, "a", request(job_id))
        assert claim == Claim(Verdict.CLAIMED, 2, JobState.RUNNING)
        story = store.job(job_id)
        assert story is not None
        assert story.attempts == ()

    def test_a_worker_without_a_heartbeat_is_granted_nothing(self, store: Store) -> None:
        done, fresh = claimed(store), new_id()
        ended(store, settlement(done))
        assert store.claim("stranger", [request(fresh), request(done)]) == [
            Claim(Verdict.HELD),
            Claim(Verdict.DUPLICATE, 1, JobState.COMPLETED, repeated=True),
        ]
        assert store.job(fresh) is None

    def test_a_worker_whose_lease_is_over_is_granted_nothing(self, store: Store) -> None:
        mine, retrying, fresh = claimed(store), claimed(store), new_id()
        ended(store, failed(retrying))
        kill(store, "a")
        claims = store.claim("a", [request(mine), request(retrying, hop=1), request(fresh)])
        assert claims == [
            Claim(Verdict.HELD, 0, JobState.RUNNING),
            Claim(Verdict.HELD, 0, JobState.RETRYING),
            Claim(Verdict.HELD),
        ]

    def test_a_worker_that_left_stays_gone_however_late_its_last_heartbeat_comes(self, store: Store) -> None:
        job_id = claimed(store)
        store.leave("a")
        beat(store, "a")
        assert claim_one(store, "a", request(new_id())) == Claim(Verdict.HELD)
        assert claim_one(store, "b", request(job_id)).previous == "a"

    def test_a_job_that_comes_twice_in_one_call_is_granted_once(self, store: Store) -> None:
        job_id = new_id()
        claims = store.claim(
            "a",
            [
                request(job_id, hop=1, offset=5),
                request(job_id, hop=1, offset=6),  # published twice
                request(job_id, hop=1, offset=5),  # the same record
                request(job_id, hop=2, offset=7),  # newer
                request(job_id, hop=0, offset=8),  # older
            ],
        )
        running = JobState.RUNNING
        assert claims == [
            FIRST,
            Claim(Verdict.DUPLICATE, 0, running),
            Claim(Verdict.HELD, 0, running),
            Claim(Verdict.HELD, 0, running),
            Claim(Verdict.DUPLICATE, 0, running),
        ]

    def test_a_later_request_of_one_call_is_granted_when_the_first_was_not(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, failed(job_id))
        claims = store.claim("a", [request(job_id), request(job_id, hop=1), request(job_id, hop=1, offset=9)])
        assert claims == [
            Claim(Verdict.DUPLICATE, 1, JobState.RETRYING, repeated=True),
            Claim(Verdict.CLAIMED, 2, JobState.RETRYING),
            Claim(Verdict.DUPLICATE, 0, JobState.RUNNING),
        ]

    def test_of_many_workers_at_once_one_is_granted_each_job(self, store: Store) -> None:
        wanted = [request(new_id(), offset=offset) for offset in range(300)]
        start = threading.Barrier(3)

        def claim_all(worker: str) -> list[Claim]:
            start.wait()
            return store.claim(worker, wanted if worker != "b" else wanted[::-1])

        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(claim_all, ["a", "b", "c"]))
        answers[1].reverse()
        for claims in zip(*answers, strict=True):
            verdicts = sorted(claim.verdict for claim in claims)
            assert verdicts == [Verdict.CLAIMED, Verdict.HELD, Verdict.HELD]


class TestSettle:
    def test_a_settlement_moves_the_state(self, store: Store) -> None:
        job_id = claimed(store)
        assert store.settle("a", [settlement(job_id)]) == [Settled(True, 1)]
        assert state_of(store, job_id) is JobState.COMPLETED

    def test_no_settlements_give_no_answers(self, store: Store) -> None:
        assert store.settle("a", []) == []

    def test_a_late_worker_is_refused_and_changes_nothing(self, store: Store) -> None:
        job_id = claimed(store)
        kill(store, "a")
        assert claim_one(store, "b", request(job_id)).token == 2
        for late in (settlement(job_id), failed(job_id), died(job_id)):
            assert store.settle("a", [late]) == [Settled(False, 2)]
        story = store.job(job_id)
        assert story is not None
        assert (story.state, story.token, story.worker_id) == (JobState.RUNNING, 2, "b")
        assert [attempt.outcome for attempt in story.attempts] == [AttemptOutcome.LOST]

    def test_a_worker_that_lost_its_lease_but_not_its_job_settles_it(self, store: Store) -> None:
        job_id = claimed(store)
        kill(store, "a")
        assert store.settle("a", [settlement(job_id)]) == [Settled(True, 1)]

    def test_another_worker_is_refused_though_it_has_the_token(self, store: Store) -> None:
        job_id = claimed(store)
        assert store.settle("b", [settlement(job_id)]) == [Settled(False, 1)]
        assert state_of(store, job_id) is JobState.RUNNING

    def test_a_job_without_a_row_is_refused(self, store: Store) -> None:
        assert store.settle("a", [settlement(new_id())]) == [Settled(False, 0)]

    def test_settling_again_is_accepted_and_leaves_one_attempt(self, store: Store) -> None:
        completed, retrying = claimed(store), claimed(store)
        for _ in range(2):
            assert store.settle("a", [settlement(completed), failed(retrying)]) == [Settled(True, 1)] * 2
        story = store.job(retrying)
        assert story is not None
        assert len(story.attempts) == 1

    def test_settling_again_to_another_end_is_refused(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, settlement(job_id))
        assert store.settle("a", [died(job_id), failed(job_id)]) == [Settled(False, 1)] * 2
        assert state_of(store, job_id) is JobState.COMPLETED

    def test_settling_again_is_refused_once_the_retry_was_claimed(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, failed(job_id))
        claim_one(store, "b", request(job_id, hop=1))
        assert store.settle("a", [failed(job_id)]) == [Settled(False, 2)]

    def test_answers_come_in_the_order_of_the_settlements(self, store: Store) -> None:
        ids = [claimed(store, offset=offset) for offset in range(6)]
        kill(store, "a")
        claim_one(store, "b", request(ids[2], offset=2))
        batch = [
            settlement(ids[5]),
            settlement(new_id()),
            settlement(ids[2]),
            failed(ids[0]),
            died(ids[4]),
            settlement(ids[1], token=7),
        ]
        assert [settled.accepted for settled in store.settle("a", batch)] == [
            True,
            False,
            False,
            True,
            True,
            False,
        ]
        assert [settled.current_token for settled in store.settle("a", batch)] == [1, 0, 2, 1, 1, 1]

    def test_a_job_that_comes_twice_in_one_call_ends_by_the_first(self, store: Store) -> None:
        job_id, other = claimed(store), claimed(store)
        batch = [failed(job_id), settlement(other), settlement(job_id), failed(job_id)]
        assert [settled.accepted for settled in store.settle("a", batch)] == [True, True, False, True]
        assert state_of(store, job_id) is JobState.RETRYING

    def test_one_call_settles_a_thousand(self, store: Store) -> None:
        ids = [new_id() for _ in range(1_000)]
        claims = store.claim("a", [request(job_id, offset=n) for n, job_id in enumerate(ids)])
        assert claims == [FIRST] * 1_000
        assert store.settle("a", [settlement(job_id) for job_id in ids]) == [Settled(True, 1)] * 1_000
        assert store.counts() == {JobState.COMPLETED: 1_000}


def test_a_closed_store_is_unavailable_and_may_be_closed_again(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.claim("a", [request(new_id())])
    with pytest.raises(StoreUnavailable, match="closed"):
        store.heartbeat(WorkerInfo("a", "host-1", 4711, ("default",), 5.0))
