"""Where a benchmark runs: embedded servers, and a namespace of its own with topics and tables."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.postgres.migrate import migrate
from pipeline.app import Pipeline
from pipeline.config import load_settings
from pipeline.runtime.interpreter import tuned_interpreter
from pipeline.runtime.worker import Worker

__all__ = ["Figures", "Place", "child", "fresh_place", "program", "run_worker"]

Figures = dict[str, float]


@dataclass(frozen=True)
class Place:
    """Addresses and names, as environment variables for child processes."""

    environment: dict[str, str]

    @property
    def namespace(self) -> str:
        return self.environment["PIPELINE_NAMESPACE"]

    def app(self) -> Pipeline:
        overrides = {
            "namespace": self.namespace,
            "postgres.schema_name": self.namespace,
            "kafka.bootstrap_servers": self.environment["PIPELINE_KAFKA__BOOTSTRAP_SERVERS"],
            "postgres.dsn": self.environment["PIPELINE_POSTGRES__DSN"],
            "topics.partitions": self.environment["PIPELINE_TOPICS__PARTITIONS"],
        }
        return Pipeline(load_settings(overrides))


@contextlib.contextmanager
def fresh_place(bootstrap: str, dsn: str, *, partitions: int = 12) -> Iterator[Place]:
    """Topics and tables that nobody has used; dropped afterwards."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    place = Place(
        {
            "PIPELINE_NAMESPACE": name,
            "PIPELINE_POSTGRES__SCHEMA_NAME": name,
            "PIPELINE_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "PIPELINE_POSTGRES__DSN": dsn,
            "PIPELINE_TOPICS__PARTITIONS": str(partitions),
            "PIPELINE_WORKER__HTTP_PORT": "off",
        }
    )
    app = place.app()
    admin = KafkaAdmin(app.admin_config())
    admin.create(app.topics())
    migrate(dsn, schema=name)
    try:
        yield place
    finally:
        admin.delete([spec.name for spec in app.topics()])
        with app.connection() as connection:
            connection.execute(f'drop schema "{name}" cascade')


def child(place: Place, kind: str, **arguments: Any) -> Figures:
    """Run `python -m bench.child KIND` in a process of its own and give the figures that it prints."""
    return program(place, "bench.child", kind, json.dumps(arguments))


def program(place: Place, module: str, *arguments: str) -> Figures:
    """Run `python -m MODULE ARGUMENTS` in a process of its own and give the figures that it prints as JSON."""
    command = [sys.executable, "-m", module, *arguments]
    with (
        tempfile.TemporaryFile() as log
    ):  # a worker's log goes to a file, as it would; a pipe would cost us its reading
        done = subprocess.run(
            command,
            env={**os.environ, **place.environment},
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
        if done.returncode != 0:
            log.seek(0)
            raise RuntimeError(
                f"{module} {arguments[0]} failed:\n{log.read().decode(errors='replace')[-4000:]}"
            )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_worker(worker: Worker) -> None:
    """Run a worker until it is stopped, in a process that is set for it as `pipeline worker` sets its own."""
    with tuned_interpreter():
        code = worker.run()
    assert code == 0, code
