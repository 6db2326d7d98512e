"""What every job store tells people: the story of a job, the workers, and how many jobs are where."""

from __future__ import annotations

import uuid

import pytest

from pipeline.core.job import Source
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
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
        snoozed = settlement(job_id, JobState.RETRYING, token=3, hop=2, attempt=2, due_at=1_700_000_090.0)
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
