"""A namespace of its own on the real servers, and the command line run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psycopg
from click.testing import CliRunner

from pipeline.adapters.avro.catalog import SchemaCatalog
from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.adapters.postgres import migrate
from pipeline.cli import dlq, job
from pipeline.cli.common import Session
from pipeline.core.job import Record
from pipeline.core.ports import Outgoing
from pipeline.core.topics import TopicNames, TopicSettings, declare
from pipeline.demo.jobs import SendEmail
from tests.harness.commands import Ended, run_command
from tests.servers import TestServers
from tests.unit.letter_examples import dead_record

ROOT = Path(__file__).parents[2]
TIERS = [0.2]


@dataclass
class DeskBench:
    """Topics and tables under one name. `queues` are those that the settings have."""

    servers: TestServers
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:12]}")
    queues: tuple[str, ...] = ("default",)

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.name)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PIPELINE_KAFKA__BOOTSTRAP_SERVERS": self.servers.bootstrap_servers,
            "PIPELINE_POSTGRES__DSN": self.servers.postgres_dsn,
            "PIPELINE_POSTGRES__SCHEMA_NAME": self.name,
            "PIPELINE_NAMESPACE": self.name,
            "PIPELINE_QUEUES": json.dumps(self.queues),
            "PIPELINE_RETRY__TIERS": json.dumps(TIERS),
            "PIPELINE_WORKER__HTTP_PORT": "off",
            "PYTHONUTF8": "1",
        }

    def run(self, *arguments: str, **environment: str) -> Ended:
        """Run `pipeline ARGUMENTS`."""
        return run_command(arguments, {**self.environment, **environment})

    def dlq(self, *arguments: str, **environment: str) -> Ended:
        """Run `pipeline dlq ARGUMENTS` in this process, which is quicker. Our own errors are raised."""
        return self._invoke(dlq.command, arguments, environment)

    def job(self, *arguments: str) -> Ended:
        """The same for `pipeline job ARGUMENTS`."""
        return self._invoke(job.command, arguments, {})

    def _invoke(
        self, command: click.Command, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Ended:
        runner = CliRunner(env={**self.environment, **environment})
        ended = runner.invoke(command, arguments, obj=Session(None, ()))
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return Ended(ended.exit_code, ended.stdout, ended.stderr)

    @contextmanager
    def worker(self, target: str, log: Path, **environment: str) -> Iterator[None]:
        """A worker process, stopped by SIGTERM at the end. Its log is written to a file."""
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "worker", target],
                env={**self.environment, **environment},
                cwd=ROOT,
                stdout=stream,
                stderr=stream,
            )
            try:
                yield
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            except BaseException:
                print(log.read_text()[-10_000:])
                raise
            finally:
                process.kill()
                process.wait(10)

    # --- preparing

    def create_topics(self, only: Callable[[str], bool] = lambda _: True) -> None:
        settings = TopicSettings(partitions=3, events_partitions=1)
        specs = declare(self.names, queues=self.queues, tiers=TIERS, settings=settings)
        self.admin().create([spec for spec in specs if only(spec.name)])

    def migrate(self) -> None:
        migrate(self.servers.postgres_dsn, schema=self.name)

    def bury(self, queue: str = "default", **letter: Any) -> None:
        """Write a dead letter, as `dead_record` describes it."""
        self.write([dead_record(**{"value": payload(), **letter})], topic=self.names.dlq(queue))

    def write(self, records: list[Record], *, topic: str) -> None:
        producer = KafkaJobProducer(producer_config(self.servers.bootstrap_servers))
        try:
            outgoing = [Outgoing(topic, record.key, record.value, record.headers) for record in records]
            assert [end.error for end in producer.send_all(outgoing)] == [None] * len(records)
        finally:
            producer.close()

    # --- looking

    def read(self, topic: str) -> list[Record]:
        config = consumer_config(self.servers.bootstrap_servers, group=self.name)
        return list(KafkaReader(config).read(topic))

    def letters(self, queue: str = "default") -> list[Record]:
        return self.read(self.names.dlq(queue))

    def replayed(self, queue: str = "default") -> list[Record]:
        return self.read(self.names.main(queue))

    def job_states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(self._rows("select state, count(*) from jobs group by state"))

    def runs(self) -> Counter[int]:
        """How many jobs were claimed how often."""
        return Counter(dict(self._rows("select token, count(*) from jobs group by token")))

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.servers.postgres_dsn, options=f"-c search_path={self.name}") as connection:
            return connection.execute(query.encode()).fetchall()

    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(admin_config(self.servers.bootstrap_servers))

    def remove(self) -> None:
        specs = declare(self.names, queues=self.queues, tiers=TIERS, settings=TopicSettings())
        self.admin().delete([spec.name for spec in specs])
        self.drop_schema()

    def drop_schema(self) -> None:
        with psycopg.connect(self.servers.postgres_dsn) as connection:
            connection.execute(f'drop schema if exists "{self.name}" cascade'.encode())


def payload(subject: str = "Your order", body: str = "Thank you.") -> bytes:
    """A sound payload of the job type email.send."""
    codec = AvroCodec(SchemaCatalog(ROOT / "schemas"))
    codec.register("email.send", SendEmail)
    return codec.encode("email.send", SendEmail(to="ada@example.test", subject=subject, body=body))
