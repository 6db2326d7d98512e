"""Fixtures that every test may use."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import TestServers, running_servers

# A run in the background of a shell ignores Ctrl-C, and so would every process that a test starts and stops by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

IN_MEMORY = Path("/dev/shm")
ROOM = 6e9  # bytes; a whole run leaves about 2 GB behind until it ends


def pytest_configure() -> None:
    """Let servers keep their data in memory where there is room: no test is of the disk, and a slow one slows all of them."""
    if "TMPDIR" not in os.environ and IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)


@pytest.fixture(scope="session")
def servers() -> Iterator[TestServers]:
    """A real Kafka and a real Postgres, shared by the session."""
    with running_servers() as found:
        yield found


@pytest.fixture
def unique() -> str:
    """A name that no other test has: for a namespace, a Postgres schema or a group."""
    return f"t{uuid.uuid4().hex[:12]}"
