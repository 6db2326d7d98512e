"""The real servers that tests run on: named in the environment, else containers, else embedded ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.embedded import start_servers

KAFKA_IMAGE = "apache/kafka:4.3.1"
POSTGRES_IMAGE = "postgres:18"


@dataclass(frozen=True)
class TestServers:
    """Addresses of servers that the session shares; a test isolates itself by names."""

    __test__ = False
    bootstrap_servers: str
    postgres_dsn: str


@contextlib.contextmanager
def running_servers() -> Iterator[TestServers]:
    kafka = os.environ.get("PIPELINE_TEST_KAFKA")
    postgres = os.environ.get("PIPELINE_TEST_POSTGRES")
    if kafka and postgres:
        yield TestServers(kafka, postgres)
    elif docker_answers():
        with container_servers() as servers:
            yield servers
    else:
        with start_servers() as embedded:
            yield TestServers(embedded.bootstrap_servers, embedded.postgres_dsn)


def docker_answers() -> bool:
    """Whether a Docker engine, not just its client, is there."""
    if shutil.which("docker") is None:
        return False
    info = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20)
    return info.returncode == 0


@contextlib.contextmanager
def container_servers() -> Iterator[TestServers]:
    """The same by testcontainers. Kept tiny: it was written without a Docker engine at hand and never run."""
    from testcontainers.community.kafka import KafkaContainer
    from testcontainers.community.postgres import PostgresContainer

    with (
        KafkaContainer(KAFKA_IMAGE).with_kraft() as kafka,
        PostgresContainer(POSTGRES_IMAGE, driver=None) as postgres,
    ):
        yield TestServers(kafka.get_bootstrap_server(), postgres.get_connection_url())
