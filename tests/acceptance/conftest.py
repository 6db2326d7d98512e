"""Worlds on the shared servers, and servers of a test's own for tests that stop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

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
