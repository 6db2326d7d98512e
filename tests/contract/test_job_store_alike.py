"""Both job stores, told the same things in the same order, answer the same and end with the same stories."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import given, settings

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.adapters.postgres import PostgresJobStore, migrate
from pipeline.core.claims import ClaimRequest, Settlement
from pipeline.core.clock import ManualClock
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome, JobStory
from tests.servers import TestServers

Store = MemoryJobStore | PostgresJobStore
# Few of each, so that they meet: two jobs, two workers, two records of each hop.
JOBS, WORKERS = (0, 1), ("a", "b")
SETTLED = (JobState.COMPLETED, JobState.RETRYING, JobState.DEAD, JobState.CANCELLED)


@pytest.fixture(scope="module")
def postgres(servers: TestServers) -> Iterator[PostgresJobStore]:
    schema = f"t{uuid.uuid4().hex[:12]}"
    migrate(servers.postgres_dsn, schema=schema)
    store = PostgresJobStore(servers.postgres_dsn, schema=schema)
    yield store
    store.close()
    with psycopg.connect(servers.postgres_dsn) as connection:
        connection.execute(f"drop schema {schema} cascade".encode())


def make_request(job: int, hop: int, offset: int) -> tuple[int, ClaimRequest]:
    where = ("jobs.default.normal", 0, 10 * hop + offset)
    return job, ClaimRequest("", "email.send", "acme", "default", hop + 1, hop, *where, 1_700_000_000.0)


def make_settlement(
    job: int, token: int, state: JobState, hop: int, failure: Failure | None, due: float
) -> tuple[int, Settlement]:
    due_at = due if state is JobState.RETRYING else 0.0
    reason = "" if state is JobState.COMPLETED else state.value
    ended = None if state in (JobState.COMPLETED, JobState.CANCELLED) else failure
    times = (1_700_000_010.0, 1_700_000_012.0)
    following = hop + 2 if state is JobState.RETRYING and failure else 0
    crashed = ended is not None and ended.error_class == "ProcessDied"
    return job, Settlement("", token, state, hop + 1, hop, *times, due_at, reason, ended, following, crashed)


jobs, workers, hops = st.sampled_from(JOBS), st.sampled_from(WORKERS), st.integers(0, 2)
failures = st.sampled_from(
    [None, Failure("ValueError", 'said "no"', "line 1\nline 2"), Failure("ProcessDied", "killed by SIGSEGV")]
)
requests = st.builds(make_request, jobs, hops, st.integers(0, 1))
PAST, FUTURE = 1_700_000_090.5, 4_000_000_000.25
settlements = st.builds(
    make_settlement,
    jobs,
    st.integers(1, 4),
    st.sampled_from(SETTLED),
    hops,
    failures,
    st.sampled_from([PAST, FUTURE]),
)
steps = st.one_of(
    st.tuples(st.just("claim"), workers, st.lists(requests, min_size=1, max_size=4)),
    st.tuples(st.just("settle"), workers, st.lists(settlements, min_size=1, max_size=3)),
    st.tuples(st.just("beat"), workers, st.sampled_from([0.0, 600.0])),
    st.tuples(st.just("leave"), workers, st.none()),
)
# Leaving is final: if it is as likely as the rest, soon nobody is there to do anything.
plans = st.lists(steps.filter(lambda step: step[0] != "leave") | steps, max_size=25)


class Run:
    """One plan on one store; names are its own, so that many runs share a database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run = uuid.uuid4().hex[:8]
        self._ids = [str(uuid.uuid4()) for _ in JOBS]
        for worker in WORKERS:
            self.step("beat", worker, 600.0)

    def step(self, kind: str, worker: str, values: Any) -> Any:
        """Do it, and give the answer in terms that are the same for every run."""
        name = f"{worker}-{self._run}"
        if kind == "claim":
            claims = self._store.claim(
                name, [wanted._replace(job_id=self._ids[job]) for job, wanted in values]
            )
            return [claim._replace(previous=claim.previous[:1]) for claim in claims]
        if kind == "settle":
            return self._store.settle(name, [end._replace(job_id=self._ids[job]) for job, end in values])
        if kind == "beat":
            return self._store.heartbeat(WorkerInfo(name, "host", 1, ("default",), values)) > 0
        return self._store.leave(name)

    def stories(self) -> list[JobStory | None]:
        return [_plain(self._store.job(job_id)) for job_id in self._ids]

    def alive(self) -> dict[str, bool]:
        mine = [worker for worker in self._store.workers() if worker.worker_id.endswith(self._run)]
        return {worker.worker_id[:1]: worker.alive for worker in mine}


def _plain(story: JobStory | None) -> JobStory | None:
    """Without what differs by nature: ids, names, and times that are the store's own."""
    if story is None:
        return None
    attempts = [attempt._replace(worker_id=attempt.worker_id[:1]) for attempt in story.attempts]
    return story._replace(
        job_id="",
        worker_id=story.worker_id[:1],
        claimed_at=0.0,
        attempts=tuple(
            attempt._replace(started_at=0.0, finished_at=0.0)
            if attempt.outcome is AttemptOutcome.LOST
            else attempt
            for attempt in attempts
        ),
    )


@pytest.mark.servers
@settings(max_examples=150, deadline=None)
@given(plan=plans)
def test_both_stores_answer_alike_whatever_they_are_told(
    postgres: PostgresJobStore, plan: list[tuple[str, str, Any]]
) -> None:
    memory, real = Run(MemoryJobStore(ManualClock())), Run(postgres)
    for step in plan:
        assert memory.step(*step) == real.step(*step)
    assert memory.stories() == real.stories()
    assert memory.alive() == real.alive()
