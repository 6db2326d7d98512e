"""Migrations: the files of migrations/, applied once each, in the order of their names, and never changed afterwards.

What was applied stands in the table `pipeline_migrations` with its checksum. A database that has a migration which this
release does not know, or knows differently, is refused: nobody can tell what its tables are like.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.resources import files
from typing import NamedTuple

import psycopg

from pipeline.adapters.postgres.errors import translate
from pipeline.adapters.postgres.session import Connection, Target
from pipeline.errors import DatabaseNotMigrated

__all__ = ["MigrationState", "MigrationStatus", "check_migrated", "migrate", "status"]

_LOCK_PATIENCE = "60s"


class MigrationState(StrEnum):
    APPLIED = "applied"
    PENDING = "pending"
    CHANGED = "changed"  # applied with another content than this release has
    UNKNOWN = "unknown"  # applied by another release, absent from this one


class MigrationStatus(NamedTuple):
    """One migration. `applied_at` is in epoch seconds, 0 when it is pending."""

    name: str
    state: MigrationState
    applied_at: float = 0.0


class _Migration(NamedTuple):
    name: str
    sql: bytes
    checksum: str


def migrate(dsn: str, *, schema: str = "pipeline", connect_timeout: float = 5) -> list[str]:
    """Apply what is pending, each migration in its own transaction; give the names.

    Of several that run at once one works and the others wait for it. Raises `DatabaseNotMigrated` when the database has
    other migrations than this release, `StoreUnavailable` when Postgres cannot be reached.
    """
    with _connected(dsn, schema, connect_timeout) as connection:
        connection.execute(
            "select pg_advisory_lock(hashtextextended(%s, 0))", [f"pipeline_migrations.{schema}"]
        )
        _ensure_schema(connection, schema)
        connection.execute(_TABLE)
        known = _known()
        pending = _pending(connection, known)
        for migration in known:
            if migration.name in pending:
                _apply(connection, migration)
    return pending


def status(dsn: str, *, schema: str = "pipeline", connect_timeout: float = 5) -> list[MigrationStatus]:
    """Every migration that this release or the database knows, in order. Changes nothing."""
    with _connected(dsn, schema, connect_timeout) as connection:
        return _status(connection, _known())


def check_migrated(connection: Connection) -> None:
    """Raise `DatabaseNotMigrated` unless the connection's schema has exactly the migrations of this release."""
    pending = _pending(connection, _known())
    if pending:
        raise DatabaseNotMigrated(
            f"the database lacks {_listed(pending)}; 'pipeline db migrate' applies what is missing"
        )


def _ensure_schema(connection: Connection, schema: str) -> None:
    # "if not exists" alone asks for the right to create schemas, even where ours is there.
    (found,) = connection.execute("select to_regnamespace(%s)", [schema]).fetchone() or (None,)
    if found is None:
        connection.execute(f'create schema if not exists "{schema}"'.encode())


_TABLE = b"""
create table if not exists pipeline_migrations (
    name       text        not null primary key,
    checksum   text        not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""


@contextmanager
def _connected(dsn: str, schema: str, connect_timeout: float) -> Iterator[Connection]:
    target = Target.of(dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=0)
    try:
        # Waiting longer than this for a table would block every worker that comes after us in the queue.
        with target.connect("migrate", {"lock_timeout": _LOCK_PATIENCE}) as connection:
            yield connection
    except psycopg.errors.LockNotAvailable as error:
        raise DatabaseNotMigrated(
            f"{target.place}: waited {_LOCK_PATIENCE} for a lock: another migration runs, or something holds a table"
        ) from error
    except psycopg.Error as error:
        raise translate(error, target.place) from error


def _known() -> list[_Migration]:
    folder = files(__package__) / "migrations"
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    # A checkout may have turned line ends; that is no other migration.
    contents = [(name, (folder / name).read_bytes().replace(b"\r\n", b"\n")) for name in found]
    return [_Migration(name[:-4], sql, hashlib.sha256(sql).hexdigest()) for name, sql in contents]


def _status(connection: Connection, known: list[_Migration]) -> list[MigrationStatus]:
    applied = _applied(connection)
    states = {migration.name: _state_of(migration, applied) for migration in known}
    names = sorted({*states, *applied})
    return [
        MigrationStatus(
            name, states.get(name, MigrationState.UNKNOWN), applied[name][1] if name in applied else 0.0
        )
        for name in names
    ]


def _state_of(migration: _Migration, applied: dict[str, tuple[str, float]]) -> MigrationState:
    if migration.name not in applied:
        return MigrationState.PENDING
    same = applied[migration.name][0] == migration.checksum
    return MigrationState.APPLIED if same else MigrationState.CHANGED


def _applied(connection: Connection) -> dict[str, tuple[str, float]]:
    (table,) = connection.execute("select to_regclass('pipeline_migrations')").fetchone() or (None,)
    if table is None:
        return {}
    rows = connection.execute(
        "select name, checksum, extract(epoch from applied_at)::float8 from pipeline_migrations"
    )
    return {name: (checksum, applied_at) for name, checksum, applied_at in rows}


def _pending(connection: Connection, known: list[_Migration]) -> list[str]:
    """Names of what is pending. Raises `DatabaseNotMigrated` when something else was applied."""
    found = _status(connection, known)
    by_state = {state: [entry.name for entry in found if entry.state is state] for state in MigrationState}
    if by_state[MigrationState.CHANGED]:
        raise DatabaseNotMigrated(
            f"the database has {_listed(by_state[MigrationState.CHANGED])} with another checksum than this release:"
            " the file was changed after it was applied, or another build applied it"
        )
    if by_state[MigrationState.UNKNOWN]:
        raise DatabaseNotMigrated(
            f"the database has {_listed(by_state[MigrationState.UNKNOWN])}, which this release does not know:"
            " a newer release migrated it; upgrade this one"
        )
    return by_state[MigrationState.PENDING]


def _listed(names: list[str]) -> str:
    return f"migration{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _apply(connection: Connection, migration: _Migration) -> None:
    with connection.transaction():
        connection.execute(migration.sql)
        connection.execute(
            "insert into pipeline_migrations (name, checksum) values (%s, %s)",
            [migration.name, migration.checksum],
        )
