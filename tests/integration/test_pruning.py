"""Forgetting what ended long ago, on the real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner

from pipeline.adapters.postgres import migrate, pruning
from pipeline.adapters.postgres.pruning import PostgresPruning
from pipeline.cli.common import Session
from pipeline.cli.db import command
from pipeline.core.ports import Pruned
from tests.servers import TestServers

pytestmark = pytest.mark.servers

WEEK = 7 * 86_400.0
Admin = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def admin(servers: TestServers, unique: str) -> Iterator[Admin]:
    """A connection to tables of the test's own."""
    migrate(servers.postgres_dsn, schema=unique)
    with psycopg.connect(
        servers.postgres_dsn, autocommit=True, options=f"-c search_path={unique}"
    ) as connection:
        yield connection
        connection.execute(f"drop schema {unique} cascade".encode())


@pytest.fixture
def store(servers: TestServers, admin: Admin, unique: str) -> Iterator[PostgresPruning]:
    with closing(PostgresPruning(servers.postgres_dsn, schema=unique)) as found:
        yield found


def add(admin: Admin, state: str, *, age: float, count: int = 1, finished: bool = True) -> list[str]:
    """Jobs that ended, or began, so many seconds ago; give their ids."""
    ids = [str(uuid4()) for _ in range(count)]
    admin.cursor().executemany(
        """
        insert into jobs (
            job_id, job_type, tenant, queue, state, attempt, hop, token, worker_id, topic, partition, "offset",
            enqueued_at, claimed_at, finished_at
        )
        select %(job_id)s, 'email.send', 'acme', 'default', %(state)s, 1, 0, 1, 'w', 'jobs.default.normal', 0, 0, t, t,
            case when %(finished)s then t end
        from (select clock_timestamp() - make_interval(secs => %(age)s) as t) as times
        """,
        [{"job_id": job_id, "state": state, "age": age, "finished": finished} for job_id in ids],
    )
    return ids


def add_attempt(admin: Admin, job_id: str) -> None:
    admin.execute(
        "insert into attempts (job_id, token, attempt, worker_id, outcome) values (%s, 1, 1, 'w', 'failed')",
        [job_id],
    )


def add_worker(admin: Admin, name: str, *, gone: float, left: bool) -> None:
    admin.execute(
        """
        insert into workers (worker_id, host, pid, queues, started_at, heartbeat_at, alive_until, left_at)
        select %s, 'host', 1, '{default}', t, t, t, case when %s then t end
        from (select clock_timestamp() - make_interval(secs => %s) as t) as times
        """,
        [name, left, gone],
    )


def add_letter(admin: Admin, job_id: str) -> None:
    columns = admin.execute(
        "select column_name, data_type from information_schema.columns "
        "where table_schema = current_schema() and table_name = 'letters' and is_nullable = 'NO'"
    ).fetchall()
    plain = {"text": "", "integer": 0, "bigint": 0, "boolean": False}
    given = {"job_id": job_id, "state": "open", "dead_at": "now"}
    values = {name: given.get(name, plain.get(kind)) for name, kind in columns}
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(["%s"] * len(values))
    admin.execute(f"insert into letters ({names}) values ({marks})".encode(), list(values.values()))


def jobs(admin: Admin) -> set[str]:
    return {row[0] for row in admin.execute("select job_id::text from jobs").fetchall()}


def test_only_jobs_go_that_ended_before_the_window(admin: Admin, store: PostgresPruning) -> None:
    old = add(admin, "completed", age=WEEK + 60)
    old += add(admin, "cancelled", age=WEEK + 60)
    old += add(admin, "dead", age=WEEK + 60, finished=False)
    kept = add(admin, "completed", age=WEEK - 60)
    kept += add(admin, "running", age=10 * WEEK)
    kept += add(admin, "retrying", age=10 * WEEK)
    for job_id in (old[0], kept[0]):
        add_attempt(admin, job_id)
    assert store.count(WEEK) == Pruned(3, 0, over=True)
    assert store.turn(WEEK) == Pruned(3, 0, over=True, in_round=3)
    assert jobs(admin) == set(kept)
    attempts = admin.execute("select job_id::text from attempts").fetchall()
    assert attempts == [(kept[0],)], "the failed runs of a job go with it"


def test_a_job_with_a_dead_letter_in_the_index_stays(admin: Admin, store: PostgresPruning) -> None:
    dead, free = add(admin, "dead", age=WEEK + 60, count=2)
    add_letter(admin, dead)
    assert store.count(WEEK).jobs == 1
    assert store.all(WEEK).jobs == 1
    assert jobs(admin) == {dead}
    assert free not in jobs(admin)


def test_workers_go_that_are_gone_for_the_window_and_a_day_at_least(
    admin: Admin, store: PostgresPruning
) -> None:
    add_worker(admin, "left", gone=2 * 86_400, left=True)
    add_worker(admin, "died", gone=2 * 86_400, left=False)
    add_worker(admin, "left today", gone=3_600, left=True)
    add_worker(admin, "alive", gone=-10, left=False)
    assert store.count(60).workers == 2
    assert store.turn(60) == Pruned(0, 2, over=True)
    left = {row[0] for row in admin.execute("select worker_id from workers").fetchall()}
    assert left == {"left today", "alive"}


def test_a_large_table_is_gone_through_turn_by_turn_and_then_left_alone(
    admin: Admin, store: PostgresPruning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "FEWEST_PAGES", 1)
    add(admin, "completed", age=WEEK + 60, count=200)
    fresh = add(admin, "completed", age=60, count=200)
    turns = []
    while (turn := store.turn(WEEK)) is not None:
        turns.append(turn)
    assert len(turns) > 10
    assert [turn.over for turn in turns] == [False] * (len(turns) - 1) + [True]
    assert sum(turn.jobs for turn in turns) == turns[-1].in_round == 200
    assert jobs(admin) == set(fresh)
    add(admin, "completed", age=WEEK + 60)
    assert store.turn(WEEK) is None, "the next round is not due yet"


def test_one_at_a_time_and_the_others_do_not_wait(
    servers: TestServers, admin: Admin, store: PostgresPruning, unique: str
) -> None:
    add(admin, "completed", age=WEEK + 60)
    with psycopg.connect(servers.postgres_dsn, options=f"-c search_path={unique}") as busy:
        busy.execute("select from upkeep for update")
        assert store.turn(WEEK) is None
    assert store.turn(WEEK) == Pruned(1, 0, over=True, in_round=1)


def test_pages_are_found_without_reading_the_table(admin: Admin) -> None:
    add(admin, "completed", age=60, count=500)
    plan = admin.execute(
        "explain delete from jobs where ctid >= '(3,0)' and ctid < '(5,0)' and state = 'completed'"
    ).fetchall()
    assert any("Tid Range Scan" in row[0] for row in plan), plan


def test_pruning_by_hand_counts_first_and_deletes_when_told(
    servers: TestServers, admin: Admin, unique: str
) -> None:
    add(admin, "completed", age=WEEK + 60, count=3)
    settings = (f"postgres.dsn={servers.postgres_dsn}", f"postgres.schema_name={unique}")

    def run(*arguments: str) -> str:
        return CliRunner().invoke(command, ["prune", *arguments], obj=Session(None, settings)).output

    assert "3 jobs, 0 workers to be forgotten (--execute does it)" in run()
    assert len(jobs(admin)) == 3
    assert "0 jobs" in run("--older-than", "2w")
    assert "3 jobs, 0 workers forgotten" in run("--execute")
    assert not jobs(admin)
