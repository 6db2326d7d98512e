"""What a claim and a settlement cost: microseconds a job, in wall time and in CPU time of this process.

Fresh table, then one with a million jobs in it; time-ordered ids (UUIDv7) and random ones (UUIDv5 of an idempotency key).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg

from pipeline.adapters.postgres import PostgresJobStore, migrate
from pipeline.core.claims import Claim, ClaimRequest, Settlement
from pipeline.core.job import idempotent_job_id, new_job_id
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState

JOBS = 100_000
BATCHES = (200, 500, 1_000)
BATCH = 500
ROWS = 1_000_000
WORKER = "bench-worker-0198c2a4"

Given = TypeVar("Given")
T = TypeVar("T")

FILL = """
insert into jobs (
    job_id, job_type, tenant, queue, state, attempt, hop, token, worker_id, topic, partition, "offset",
    enqueued_at, claimed_at, started_at, finished_at
)
select
    (lpad(to_hex(1700000000000 + i / 20), 12, '0') || '7' || substr(md5(i::text), 1, 3) || '8'
        || substr(md5(i::text), 4, 15))::uuid,
    'email.send', 'tenant-' || i %% 50, 'default', 'completed', 1, 0, 1, 'bench-worker-0198c2a3',
    'jobs.default.normal', i %% 12, i, now(), now(), now(), now()
from generate_series(%s, %s) as i
"""


def run(dsn: str) -> dict[str, float]:
    """Measure on a schema of its own in this database, and drop it."""
    with _store(dsn) as (store, connection):
        figures = _measure(store, "store", ordered_ids(JOBS), BATCH)
        for batch in BATCHES:
            figures |= _measure(store, f"store.batch_{batch}", ordered_ids(JOBS), batch)
        figures |= _measure_rest(store)
    with _store(dsn) as (store, connection):
        connection.execute(FILL, [1, ROWS])
        for batch in BATCHES:
            figures |= _measure(store, f"store.rows_1m.batch_{batch}", ordered_ids(JOBS), batch)
        figures |= _measure(store, "store.rows_1m", ordered_ids(JOBS), BATCH)
        figures |= _measure(store, "store.rows_1m.random_ids", random_ids(JOBS), BATCH)
        figures["store.in_page_updates"] = _in_page(connection, store)
    return figures


@contextmanager
def _store(dsn: str) -> Iterator[tuple[PostgresJobStore, psycopg.Connection[tuple[object, ...]]]]:
    schema = f"bench_{uuid.uuid4().hex[:8]}"
    migrate(dsn, schema=schema)
    store = PostgresJobStore(dsn, schema=schema)
    store.heartbeat(WorkerInfo(WORKER, "host", 1, ("default",), 3_600.0))
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={schema}") as connection:
        try:
            yield store, connection
        finally:
            store.close()
            connection.execute(f"drop schema {schema} cascade".encode())


def ordered_ids(count: int) -> list[str]:
    now = time.time()
    return [new_job_id(now=now + index * 5e-5, entropy=os.urandom(10)) for index in range(count)]


def random_ids(count: int) -> list[str]:
    start = uuid.uuid4().hex
    return [idempotent_job_id(tenant="acme", job_type="email.send", key=f"{start}-{i}") for i in range(count)]


def requests(ids: Sequence[str]) -> list[ClaimRequest]:
    now = time.time()
    return [
        ClaimRequest(
            job_id, "email.send", f"tenant-{i % 50}", "default", 1, 0, "jobs.default.normal", i % 12, i, now
        )
        for i, job_id in enumerate(ids)
    ]


def settlements(ids: Sequence[str], claims: Sequence[Claim]) -> list[Settlement]:
    now = time.time()
    return [
        Settlement(job_id, claim.token, JobState.COMPLETED, 1, 0, now, now + 0.001)
        for job_id, claim in zip(ids, claims, strict=True)
    ]


class Timer:
    """Wall and CPU time of one kind of call."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def time(self, call: Callable[[str, list[Given]], list[T]], given: list[Given]) -> list[T]:
        wall, cpu = time.perf_counter(), time.process_time()
        result = call(WORKER, given)
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        return result

    def figures(self, name: str, jobs: int) -> dict[str, float]:
        return {f"{name}_us": self.wall / jobs * 1e6, f"{name}_cpu_us": self.cpu / jobs * 1e6}


def _measure(store: PostgresJobStore, name: str, ids: list[str], batch: int) -> dict[str, float]:
    """Claim a batch, settle it, and so on, as a worker does whose handlers take no time."""
    claiming, settling = Timer(), Timer()
    wanted = requests(ids)
    for start in range(0, len(ids), batch):
        claims = claiming.time(store.claim, wanted[start : start + batch])
        ended = settlements(ids[start : start + batch], claims)
        settled = settling.time(store.settle, ended)
        assert all(answer.accepted for answer in settled)
    return {
        **claiming.figures(f"{name}.claim", len(ids)),
        **settling.figures(f"{name}.settle", len(ids)),
    }


def _measure_rest(store: PostgresJobStore) -> dict[str, float]:
    """What is rare: records that come again, and runs that fail."""
    ids = ordered_ids(20_000)
    first, again, failing = Timer(), Timer(), Timer()
    failure = Failure("ValueError", "no such address", "  File handlers.py, line 3\n" * 20)
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        claims = first.time(store.claim, requests(part))
        ended = [
            end._replace(state=JobState.RETRYING, hop=1, failure=failure) for end in settlements(part, claims)
        ]
        failing.time(store.settle, ended)
        again.time(store.claim, requests(part))
    return {
        **failing.figures("store.settle_failed", len(ids)),
        **again.figures("store.duplicate", len(ids)),
    }


def _in_page(connection: psycopg.Connection[tuple[object, ...]], store: PostgresJobStore) -> float:
    """The part of the updates that stayed in their page and touched no index."""
    store.close()  # the server counts a session's work at its end at the latest
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        row = connection.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'jobs'::regclass"
        ).fetchone()
        updated, in_page = row or (0, 0)
        assert isinstance(updated, int)
        assert isinstance(in_page, int)
        if updated >= JOBS * 5:
            return in_page / updated
        time.sleep(0.1)
    raise RuntimeError("the server did not count its updates within 10 s")


def main() -> None:
    for name, value in run(os.environ["PIPELINE_TEST_POSTGRES"]).items():
        print(f"{name:<45} {value:8.2f}")


if __name__ == "__main__":
    main()
