"""`pipeline db` on a real Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.common import Session
from pipeline.cli.db import command
from tests.servers import TestServers

pytestmark = pytest.mark.servers

Run = Callable[[str], Result]


@pytest.fixture
def db(servers: TestServers, unique: str) -> Iterator[Run]:
    """Run one verb on a schema of the test's own."""
    settings = (f"postgres.dsn={servers.postgres_dsn}", f"postgres.schema_name={unique}")
    yield lambda verb: CliRunner().invoke(command, [verb], obj=Session(None, settings))
    with psycopg.connect(servers.postgres_dsn) as connection:
        connection.execute(f"drop schema if exists {unique} cascade".encode())


def test_migrating_names_what_it_applies_and_then_has_nothing_to_do(db: Run, unique: str) -> None:
    first, second = db("migrate"), db("migrate")
    assert "applied 0001_jobs" in first.output
    assert second.output == f"nothing to apply: schema {unique} is up to date\n"
    assert (first.exit_code, second.exit_code) == (0, 0)


def test_the_status_fails_until_everything_is_applied(db: Run) -> None:
    before = db("status")
    db("migrate")
    after = db("status")
    assert before.output.split()[:2] == ["0001_jobs", "pending"]
    assert after.output.split()[:2] == ["0001_jobs", "applied"]
    assert (before.exit_code, after.exit_code) == (1, 0)
