"""Migrations on a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pipeline.adapters.postgres import MigrationState, PostgresJobStore, migrate, status
from pipeline.adapters.postgres import migrate as migrate_function
from pipeline.adapters.postgres.migrate import _known, _Migration
from pipeline.core.ports import WorkerInfo
from pipeline.errors import ConfigError, DatabaseNotMigrated, PipelineError, StoreUnavailable
from tests.servers import TestServers

pytestmark = pytest.mark.servers

WORKER = WorkerInfo("a", "host", 1, ("default",), 60.0)


@pytest.fixture
def dsn(servers: TestServers, unique: str) -> Iterator[str]:
    yield servers.postgres_dsn
    execute(servers.postgres_dsn, f"drop schema if exists {unique} cascade")


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(statement.encode())


def test_migrating_applies_everything_once(dsn: str, unique: str) -> None:
    assert {entry.state for entry in status(dsn, schema=unique)} == {MigrationState.PENDING}
    applied = migrate(dsn, schema=unique)
    assert applied == [entry.name for entry in status(dsn, schema=unique)]
    assert applied[0] == "0001_jobs"
    assert migrate(dsn, schema=unique) == []
    for entry in status(dsn, schema=unique):
        assert entry.state is MigrationState.APPLIED
        assert entry.applied_at > 1_700_000_000


def test_looking_at_the_status_creates_nothing(dsn: str, unique: str) -> None:
    status(dsn, schema=unique)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select to_regnamespace(%s)", [unique]).fetchone() == (None,)


def test_of_many_that_migrate_at_once_one_works(dsn: str, unique: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda _: migrate(dsn, schema=unique), range(4)))
    assert sorted(len(names) for names in applied) == [0, 0, 0, len(_known())]


def test_schemas_do_not_meet(dsn: str, unique: str) -> None:
    other = f"{unique}_b"
    migrate(dsn, schema=unique)
    assert {entry.state for entry in status(dsn, schema=other)} == {MigrationState.PENDING}


def test_a_store_on_a_database_without_tables_says_what_to_do(dsn: str, unique: str) -> None:
    store = PostgresJobStore(dsn, schema=unique)
    with pytest.raises(DatabaseNotMigrated, match=r"lacks migration.* 0001_jobs.*pipeline db migrate"):
        store.heartbeat(WORKER)
    migrate(dsn, schema=unique)
    assert store.heartbeat(WORKER) > 0
    store.close()


def test_a_migration_that_was_changed_is_refused(dsn: str, unique: str) -> None:
    migrate(dsn, schema=unique)
    execute(dsn, f"update {unique}.pipeline_migrations set checksum = 'x' where name = '0001_jobs'")
    assert status(dsn, schema=unique)[0].state is MigrationState.CHANGED
    with pytest.raises(DatabaseNotMigrated, match="0001_jobs with another checksum"):
        migrate(dsn, schema=unique)
    with pytest.raises(DatabaseNotMigrated, match="0001_jobs with another checksum"):
        PostgresJobStore(dsn, schema=unique).heartbeat(WORKER)


def test_a_migration_of_a_newer_release_is_refused(dsn: str, unique: str) -> None:
    migrate(dsn, schema=unique)
    execute(dsn, f"insert into {unique}.pipeline_migrations (name, checksum) values ('9999_future', 'x')")
    assert status(dsn, schema=unique)[-1][:2] == ("9999_future", MigrationState.UNKNOWN)
    with pytest.raises(DatabaseNotMigrated, match="9999_future, which this release does not know"):
        migrate(dsn, schema=unique)
    with pytest.raises(DatabaseNotMigrated, match="9999_future"):
        PostgresJobStore(dsn, schema=unique).heartbeat(WORKER)


def test_a_store_that_runs_goes_on_when_a_newer_release_migrates(dsn: str, unique: str) -> None:
    migrate(dsn, schema=unique)
    store = PostgresJobStore(dsn, schema=unique)
    store.heartbeat(WORKER)
    execute(dsn, f"insert into {unique}.pipeline_migrations (name, checksum) values ('9999_future', 'x')")
    assert store.workers()[0].worker_id == "a"  # on a connection that was made after it
    store.close()


def test_a_migration_that_fails_leaves_nothing_and_those_before_it_stay(
    dsn: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _Migration("0900_broken", b"create table half (id int); select 1 / 0", "x")
    known = [*_known(), broken]
    monkeypatch.setitem(migrate_function.__globals__, "_known", lambda: known)
    with pytest.raises(PipelineError, match="division by zero"):
        migrate(dsn, schema=unique)
    states = {entry.name: entry.state for entry in status(dsn, schema=unique)}
    assert states == {
        **dict.fromkeys(states, MigrationState.APPLIED),
        "0900_broken": MigrationState.PENDING,
    }
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select to_regclass(%s)", [f"{unique}.half"]).fetchone() == (None,)


@pytest.mark.parametrize("schema", ["", "Pipeline", "a-b", 'a"; drop table x', "pg_mine", "1a", "a" * 64])
def test_a_schema_name_that_is_not_plain_is_refused(dsn: str, schema: str) -> None:
    with pytest.raises(ConfigError, match="schema is"):
        migrate(dsn, schema=schema)
    with pytest.raises(ConfigError, match="schema is"):
        PostgresJobStore(dsn, schema=schema)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"Postgres at 127\.0\.0\.1:1, database jobs"):
        migrate("postgresql://me:hidden@127.0.0.1:1/jobs")
