"""Fixtures that every test may use."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.servers import TestServers, running_servers

# A run in the background of a shell ignores Ctrl-C, and so would every process that a test starts and stops by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def servers() -> Iterator[TestServers]:
    """A real Kafka and a real Postgres, shared by the session."""
    with running_servers() as found:
        yield found


@pytest.fixture
def unique() -> str:
    """A name that no other test has: for a namespace, a Postgres schema or a group."""
    return f"t{uuid.uuid4().hex[:12]}"
