"""What every job store does: one suite for the one on Postgres and its twin in memory."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.adapters.postgres import PostgresJobStore, migrate
from pipeline.core.claims import Claim, ClaimRequest, Settled, Settlement, Verdict
from pipeline.core.clock import ManualClock
from pipeline.core.job import Source
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from pipeline.errors import StoreUnavailable

Store = MemoryJobStore | PostgresJobStore
FIRST = Claim(Verdict.CLAIMED, 1)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.servers)])
def store(request: pytest.FixtureRequest, unique: str) -> Iterator[Store]:
    """A store in which workers `a`, `b` and `c` are alive."""
    if request.param == "memory":
        found: Store = MemoryJobStore(ManualClock())
        beat(found, "a", "b", "c")
        yield found
        return
    dsn = request.getfixturevalue("servers").postgres_dsn
    migrate(dsn, schema=unique)
    found = PostgresJobStore(dsn, schema=unique)
    beat(found, "a", "b", "c")
    yield found
    found.close()
    with psycopg.connect(dsn) as connection:
        connection.execute(f"drop schema {unique} cascade".encode())


def beat(store: Store, *workers: str, lease: float = 600.0) -> None:
    for worker in workers:
        store.heartbeat(WorkerInfo(worker, "host-1", 4711, ("default",), lease))


def kill(store: Store, worker: str) -> None:
    """Let the worker's lease end now."""
    beat(store, worker, lease=0.0)


def new_id() -> str:
    return str(uuid.uuid4())


def request(job_id: str, *, hop: int = 0, offset: int = 0, attempt: int = 1) -> ClaimRequest:
    return ClaimRequest(
        job_id,
        "email.send",
        "acme",
        "default",
        attempt,
        hop,
        "jobs.default.normal",
        3,
        offset,
        1_700_000_000.25,
    )


def settlement(
    job_id: str, state: JobState = JobState.COMPLETED, *, token: int = 1, hop: int = 0, **other: object
) -> Settlement:
    values = {"attempt": 1, "started_at": 1_700_000_001.0, "finished_at": 1_700_000_001.5, **other}
    return Settlement(job_id=job_id, token=token, state=state, hop=hop, **values)  # type: ignore[arg-type]


def failed(job_id: str, *, token: int = 1, hop: int = 1) -> Settlement:
    failure = Failure("ValueError", "no such address", "File handlers.py, line 3")
    return settlement(
        job_id, JobState.RETRYING, token=token, hop=hop, due_at=1_700_000_060.0, failure=failure
    )


def died(job_id: str, *, token: int = 1, hop: int = 0) -> Settlement:
    failure = Failure("ValueError", "no such address")
    return settlement(job_id, JobState.DEAD, token=token, hop=hop, reason="max_attempts", failure=failure)


def claim_one(store: Store, worker: str, wanted: ClaimRequest) -> Claim:
    (claim,) = store.claim(worker, [wanted])
    return claim


def claimed(store: Store, worker: str = "a", **values: int) -> str:
    """The id of a new job that runs on `worker`."""
    job_id = new_id()
    assert claim_one(store, worker, request(job_id, **values)) == FIRST
    return job_id


def ended(store: Store, *settlements: Settlement) -> None:
    assert all(settled.accepted for settled in store.settle("a", settlements))


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
            Claim(Verdict.DUPLICATE, 0, JobState.COMPLETED, repeated=True),
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
        assert again == Claim(Verdict.DUPLICATE, 0, state, repeated=True)
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
        assert claim_one(store, "b", request(job_id)) == Claim(Verdict.CLAIMED, 2, JobState.RUNNING, "a")

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
            Claim(Verdict.DUPLICATE, 0, JobState.COMPLETED, repeated=True),
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
            Claim(Verdict.DUPLICATE, 0, JobState.RETRYING, repeated=True),
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


class TestStory:
    def test_a_job_that_runs_shows_its_claim(self, store: Store) -> None:
        job_id = claimed(store, offset=9)
        story = store.job(job_id)
        assert story is not None
        assert story.job_id == job_id
        assert (story.job_type, story.tenant, story.queue) == ("email.send", "acme", "default")
        assert (story.state, story.attempt, story.hop, story.token) == (JobState.RUNNING, 1, 0, 1)
        assert (story.worker_id, story.source) == ("a", Source("jobs.default.normal", 3, 9))
        assert story.enqueued_at == pytest.approx(1_700_000_000.25)
        assert story.claimed_at > 0
        assert (story.started_at, story.finished_at, story.due_at, story.duration) == (0, 0, 0, 0)
        assert (story.reason, story.attempts) == ("", ())

    def test_a_job_that_completed_shows_its_times(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, settlement(job_id))
        story = store.job(job_id)
        assert story is not None
        assert story.started_at == pytest.approx(1_700_000_001.0)
        assert story.duration == pytest.approx(0.5)
        assert story.attempts == ()

    def test_every_run_that_did_not_complete_is_told_in_order(self, store: Store) -> None:
        job_id = claimed(store)
        kill(store, "a")
        claim_one(store, "b", request(job_id))
        assert store.settle("b", [failed(job_id, token=2)])[0].accepted
        claim_one(store, "c", request(job_id, hop=1, attempt=2))
        snoozed = settlement(job_id, JobState.RETRYING, token=3, hop=2, attempt=2, due_at=1_800_000_000.0)
        assert store.settle("c", [snoozed])[0].accepted
        claim_one(store, "c", request(job_id, hop=2, attempt=2))
        last = died(job_id, token=4, hop=2)._replace(attempt=2)
        assert store.settle("c", [last])[0].accepted
        story = store.job(job_id)
        assert story is not None
        assert (story.state, story.reason, story.due_at) == (JobState.DEAD, "max_attempts", 0)
        assert [(a.outcome, a.attempt, a.token, a.worker_id) for a in story.attempts] == [
            (AttemptOutcome.LOST, 1, 1, "a"),
            (AttemptOutcome.FAILED, 1, 2, "b"),
            (AttemptOutcome.SNOOZED, 2, 3, "c"),
            (AttemptOutcome.DEAD, 2, 4, "c"),
        ]
        lost, first, snooze, dead = story.attempts
        assert lost.failure is None
        assert lost.started_at > 0
        assert first.failure == Failure("ValueError", "no such address", "File handlers.py, line 3")
        assert first.duration == pytest.approx(0.5)
        assert snooze.failure is None
        assert (dead.reason, dead.failure) == ("max_attempts", Failure("ValueError", "no such address"))

    def test_a_retrying_job_shows_when_it_is_due_until_it_runs(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, failed(job_id))
        waiting = store.job(job_id)
        assert waiting is not None
        assert waiting.due_at == pytest.approx(1_700_000_060.0)
        claim_one(store, "b", request(job_id, hop=1, offset=4, attempt=2))
        running = store.job(job_id)
        assert running is not None
        assert (running.due_at, running.started_at, running.finished_at, running.reason) == (0, 0, 0, "")
        assert (running.attempt, running.hop, running.source.offset) == (2, 1, 4)

    def test_a_cancelled_job_tells_why(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, settlement(job_id, JobState.CANCELLED, reason="customer left"))
        story = store.job(job_id)
        assert story is not None
        assert (story.state, story.reason, story.attempts) == (JobState.CANCELLED, "customer left", ())

    @pytest.mark.parametrize(
        "text", ['"', "\\", '\\"', "{a,b}", "NULL", " ", "two\nlines", "%s %(x)s", "Grüße 🎉", "'; --"]
    )
    def test_text_is_kept_to_the_letter(self, store: Store, text: str) -> None:
        plain, job_id = new_id(), new_id()
        wanted = request(job_id)._replace(tenant=text, job_type=text)
        assert store.claim("a", [wanted, request(plain)]) == [FIRST, FIRST]
        failure = Failure(text, text, text)
        ended(store, died(plain), died(job_id)._replace(failure=failure, reason=text))
        story = store.job(job_id)
        assert story is not None
        assert (story.tenant, story.job_type, story.reason) == (text, text, text)
        assert story.attempts[0].failure == failure

    def test_a_job_that_is_due_after_the_end_of_time_is_settled_all_the_same(self, store: Store) -> None:
        job_id = claimed(store)
        ended(store, failed(job_id)._replace(due_at=1e300))
        assert state_of(store, job_id) is JobState.RETRYING

    @pytest.mark.parametrize("job_id", [str(uuid.UUID(int=1)), "no uuid", ""])
    def test_a_job_that_nobody_claimed_has_no_story(self, store: Store, job_id: str) -> None:
        assert store.job(job_id) is None

    def test_dead_jobs_are_counted_until_they_are_replayed(self, store: Store) -> None:
        first, second = claimed(store), claimed(store)
        ended(store, died(first), died(second))
        assert store.dead_count() == 2
        claim_one(store, "b", request(first, hop=1))
        assert store.dead_count() == 1
        assert store.counts() == {JobState.DEAD: 1, JobState.RUNNING: 1}


class TestWorkers:
    def test_a_heartbeat_gives_the_clock_of_the_store(self, store: Store) -> None:
        first = store.heartbeat(WorkerInfo("d", "host-2", 7, ("default", "gpu"), 5.0))
        (worker,) = [worker for worker in store.workers() if worker.worker_id == "d"]
        assert worker.heartbeat_at == pytest.approx(first, abs=1)
        assert worker.alive_until - worker.heartbeat_at == pytest.approx(5.0, abs=1e-3)
        assert store.heartbeat(WorkerInfo("d", "host-2", 7, ("default", "gpu"), 5.0)) >= first

    def test_workers_are_listed_with_what_they_are(self, store: Store) -> None:
        beat(store, "d", lease=0.0)
        store.leave("b")
        store.leave("nobody")
        by_id = {worker.worker_id: worker for worker in store.workers()}
        assert {worker_id: worker.alive for worker_id, worker in by_id.items()} == {
            "a": True,
            "b": False,
            "c": True,
            "d": False,
        }
        assert by_id["a"][1:4] == ("host-1", 4711, ("default",))
        assert by_id["b"].left_at >= by_id["b"].started_at > 0
        assert by_id["a"].left_at == 0

    def test_a_worker_keeps_its_start_through_heartbeats(self, store: Store) -> None:
        started = {worker.worker_id: worker.started_at for worker in store.workers()}
        beat(store, "a")
        assert {worker.worker_id: worker.started_at for worker in store.workers()} == started

    def test_a_worker_may_read_no_queue(self, store: Store) -> None:
        store.heartbeat(WorkerInfo("d", "host-2", 7, (), 5.0))
        assert [worker.queues for worker in store.workers() if worker.worker_id == "d"] == [()]


def test_a_closed_store_is_unavailable_and_may_be_closed_again(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.claim("a", [request(new_id())])
    with pytest.raises(StoreUnavailable, match="closed"):
        store.heartbeat(WorkerInfo("a", "host-1", 4711, ("default",), 5.0))


def state_of(store: Store, job_id: str) -> JobState:
    story = store.job(job_id)
    assert story is not None
    return story.state
