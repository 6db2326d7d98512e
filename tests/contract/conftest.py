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
def store(request: pytest.FixtureRequest) -> Store:
    """A store in which workers `a`, `b` and `c` are alive."""
    in_memory = request.param == "memory"
    found: Store = MemoryJobStore(ManualClock()) if in_memory else request.getfixturevalue("postgres_store")
    beat(found, "a", "b", "c")
    return found


@pytest.fixture
def postgres_store(request: pytest.FixtureRequest, unique: str) -> Iterator[PostgresJobStore]:
    """On tables of the test's own."""
    dsn = request.getfixturevalue("servers").postgres_dsn
    migrate(dsn, schema=unique)
    store = PostgresJobStore(dsn, schema=unique)
    yield store
    store.close()
    with psycopg.connect(dsn) as connection:
        connection.execute(f"drop schema {unique} cascade".encode())
