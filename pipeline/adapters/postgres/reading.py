"""What people ask the store, on a connection."""

from __future__ import annotations

import uuid
from typing import Any

from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection
from pipeline.core.job import Source
from pipeline.core.outcome import Failure
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome, AttemptStory, JobStory, WorkerStory

__all__ = ["counts", "dead_count", "job", "workers"]


def job(connection: Connection, job_id: str) -> JobStory | None:
    """One job with all its attempts, from one moment; None when there is no such job, or no such id can be."""
    try:
        wanted = {"job_id": str(uuid.UUID(job_id))}
    except ValueError:
        return None
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        row = connection.execute(QUERIES["job"], wanted, binary=True).fetchone()
        runs = connection.execute(QUERIES["attempts"], wanted, binary=True).fetchall()
    if row is None:
        return None
    attempts = tuple(_attempt(found) for found in runs)
    *known, crashes = row
    return JobStory._make(
        (*known[:4], JobState(known[4]), *known[5:9], Source(*known[9:12]), *known[12:], attempts, crashes),
    )


def _attempt(found: tuple[Any, ...]) -> AttemptStory:
    attempt, token, worker, outcome, started_at, finished_at, reason, *error = found
    failure = Failure(*error) if error[0] else None
    return AttemptStory(
        attempt, token, worker, AttemptOutcome(outcome), started_at, finished_at, reason, failure
    )


def workers(connection: Connection) -> list[WorkerStory]:
    """Every start of a worker that is on record, the first one first."""
    found = connection.execute(QUERIES["workers"], binary=True)
    return [
        WorkerStory(worker_id, host, pid, tuple(queues), *rest)
        for worker_id, host, pid, queues, *rest in found
    ]


def counts(connection: Connection) -> dict[JobState, int]:
    """How many jobs are in each state. Reads all of them: for people, not for every scrape."""
    return {JobState(state): count for state, count in connection.execute(QUERIES["counts"])}


def dead_count(connection: Connection) -> int:
    """How many jobs are dead now. Reads only those that ever died."""
    row = connection.execute(QUERIES["dead_count"]).fetchone()
    assert row is not None
    return int(row[0])
