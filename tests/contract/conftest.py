"""Fixtures of the contract suites: each promise is tested on the real thing and on its twin in memory."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.adapters.postgres import PostgresJobStore, migrate
from pipeline.core.clock import ManualClock
from tests.contract.stores import Store, beat


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
