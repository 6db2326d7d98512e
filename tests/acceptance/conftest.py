"""Worlds on the shared servers, and servers of a test's own for tests that stop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.harness.world import World
from tests.servers import TestServers

NewWorld = Callable[..., World]


@pytest.fixture
def new_world(servers: TestServers, tmp_path: Path) -> Iterator[NewWorld]:
    """Makes worlds, with the arguments of `World` after its servers and folder."""
    with ExitStack() as stack:

        def make(on: TestServers = servers, **options: Any) -> World:
            folder = tmp_path / f"world-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(World(on, folder, **options))

        yield make


@pytest.fixture
def world(new_world: NewWorld) -> World:
    return new_world()


@pytest.fixture(scope="module")
def _postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres") / "data", temporary=True) as server:
        yield server


@pytest.fixture(scope="module")
def _kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka") / "data", temporary=True) as server:
        yield server


@pytest.fixture
def own_postgres(_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """One that a test may stop."""
    yield _postgres
    _postgres.start()


@pytest.fixture
def own_kafka(_kafka: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """One that a test may stop."""
    yield _kafka
    _kafka.start()
