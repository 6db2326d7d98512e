"""One test's own part of the servers: topics, tables, workers, and what there is to see of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import psycopg

from pipeline import JobType, Publisher, load_settings
from pipeline.adapters.avro.events import decode_event
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import consumer_config
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.adapters.postgres import migrate
from pipeline.config.keys import setting_keys
from pipeline.core.job import Record
from pipeline.core.state import JobState
from pipeline.core.story import JobStory
from pipeline.core.topics import TopicNames
from tests.harness.commands import Ended, run_command
from tests.harness.jobs import Jobs, Policy, Task, declare, write_schemas
from tests.harness.ledger import Acked, Execution, Ledger, executions_in
from tests.harness.processes import WorkerProcess
from tests.harness.sampler import OffsetSampler
from tests.harness.waiting import wait_until
from tests.servers import TestServers

__all__ = ["DEFAULTS", "Effect", "World"]

TENANTS = tuple(f"tenant-{number}" for number in range(9))

# As short as the product allows. A session of less than 6 s is refused by the broker.
DEFAULTS: Mapping[str, object] = {
    "topics.partitions": 3,
    "topics.events_partitions": 1,
    "retry.tiers": [1, 2, 4],
    "kafka.request_timeout": 5,
    "publisher.timeout": 5,
    "worker.concurrency": 8,
    "worker.async_concurrency": 20,
    "worker.session_timeout": 6,
    "worker.lease": 5,
    "worker.heartbeat_interval": 1,
    "worker.held_recheck": 0.3,
    "worker.commit_interval": 0.2,
    "worker.drain_timeout": 15,
    "worker.http_port": "off",
}


class Effect(NamedTuple):
    """A row that a handler wrote."""

    job_id: str
    token: int
    attempt: int
    pid: int


class World:
    """Topics and tables under a name of its own. Leaving the block kills what still runs and removes all of it.

    `settings` are keys of the product over `DEFAULTS`; `target` is the application of the workers, and `program` what
    Python is to run for one.
    """

    def __init__(
        self,
        servers: TestServers,
        folder: Path,
        *,
        settings: Mapping[str, object] | None = None,
        policy: Policy | None = None,
        target: str = "tests.harness.handlers:app",
        program: Sequence[str] = ("-m", "pipeline"),
    ) -> None:
        self.target = target
        self._program = program
        self.servers = servers
        self.folder = folder
        self.name = f"t{uuid4().hex[:12]}"
        self.policy = policy or Policy()
        self.settings = {**DEFAULTS, **(settings or {})}
        self.workers: list[WorkerProcess] = []
        self._stack = ExitStack()
        self._acked = Ledger(folder / "acked")
        self._executions = Ledger(folder / "executions")

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _set_up(self) -> None:
        write_schemas(self.folder / "schemas")
        self.jobs.app.configure(load_settings(environ=self.environment()))
        self._stack.callback(self._remove)
        self.admin.create(self.jobs.app.topics())
        migrate(self.servers.postgres_dsn, schema=self.name)
        self.execute(
            f"create table {self.effects_table} "
            "(job_id uuid, token bigint, attempt integer, pid integer, place bigserial)"
        )

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _remove(self) -> None:
        for worker in self.workers:
            worker.remove()
        self.admin.delete([spec.name for spec in self.jobs.app.topics()])
        self.execute(f'drop schema if exists "{self.name}" cascade')

    # --- what it is called

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.name)

    @property
    def group(self) -> str:
        return f"{self.name}.default"

    @property
    def topics(self) -> list[str]:
        """Those that workers read."""
        tiers = self.jobs.app.settings.retry.tiers
        return [self.names.main("default"), *(self.names.retry("default", tier) for tier in tiers)]

    @property
    def effects_table(self) -> str:
        return f'"{self.name}".effects'

    def environment(self, settings: Mapping[str, object] | None = None) -> dict[str, str]:
        """What commands and workers run in."""
        own = {
            "namespace": self.name,
            "schemas_dir": self.folder / "schemas",
            "kafka.bootstrap_servers": self.servers.bootstrap_servers,
            "postgres.dsn": self.servers.postgres_dsn,
            "postgres.schema_name": self.name,
        }
        merged = {**own, **self.settings, **(settings or {})}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")}
        return {
            **inherited,
            **{setting_keys()[key].env: _text(value) for key, value in merged.items()},
            **self.policy.to_environment(),
            "HARNESS_FOLDER": str(self.folder),
            "HARNESS_EFFECTS": self.effects_table,
            "PYTHONUTF8": "1",
        }

    # --- acting

    @cached_property
    def jobs(self) -> Jobs:
        return declare(self.policy)

    @cached_property
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.jobs.app.admin_config())

    @cached_property
    def publisher(self) -> Publisher:
        return self._stack.enter_context(self.jobs.app.publisher(source="driver"))

    def publish(
        self,
        job_type: JobType[Task],
        tasks: Iterable[Task],
        *,
        tenant: str | None = None,
        keyed: bool = False,
    ) -> list[Acked]:
        """Publish, note what was acknowledged, give it in the order of the tasks.

        Without a tenant the tasks go round all of them, and so over all partitions. With `keyed` the name of a task is its
        idempotency key.
        """
        futures = [
            self.publisher.publish_async(
                job_type,
                task,
                tenant=tenant or TENANTS[number % len(TENANTS)],
                idempotency_key=task.name if keyed else None,
            )
            for number, task in enumerate(tasks)
        ]
        acked = [Acked(*future.result(30)) for future in futures]
        self.note_acked(acked)
        return acked

    def note_acked(self, acked: Sequence[Acked]) -> None:
        self._acked.append(*(each._asdict() for each in acked))

    def start_worker(
        self,
        *arguments: str,
        target: str = "",
        program: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> WorkerProcess:
        """A worker process; `settings` have `__` for the dot. `target` and `program` are instead of the usual ones."""
        changes = {key.replace("__", "."): value for key, value in settings.items()}
        worker = WorkerProcess(
            [sys.executable, *(program or self._program), "worker", target or self.target, *arguments],
            environment={**self.environment(changes), **(environment or {})},
            log=self.folder / f"worker-{len(self.workers) + 1}.log",
        )
        self.workers.append(worker)
        return worker

    def start_command(
        self, *arguments: str, log: str, settings: Mapping[str, object] | None = None
    ) -> WorkerProcess:
        """`pipeline ARGUMENTS` in a process of its own, by the program that workers run."""
        return WorkerProcess(
            [sys.executable, *self._program, *arguments],
            environment=self.environment(settings),
            log=self.folder / log,
        )

    def stop_workers(self) -> None:
        """SIGTERM to all that run; each must end in order."""
        running = [worker for worker in self.workers if worker.running]
        for worker in running:
            worker.terminate()
        for worker in running:
            assert worker.wait() == 0, worker.tail()

    def cli(self, *arguments: str, settings: Mapping[str, object] | None = None) -> Ended:
        """Run `pipeline ARGUMENTS` as a user does."""
        return run_command(arguments, self.environment(settings))

    def open(self, gate: str) -> None:
        """Let the tasks go on that wait for it."""
        (self.folder / gate).touch()

    # --- looking

    def acked(self) -> list[Acked]:
        return [Acked(**entry) for entry in self._acked.entries()]

    def executions(self, *, job_id: str | None = None, pid: int | None = None) -> list[Execution]:
        return [
            run
            for run in executions_in(self._executions.entries())
            if job_id in (None, run.job_id) and pid in (None, run.pid)
        ]

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.servers.postgres_dsn, autocommit=True) as connection:
            found = connection.execute(statement.encode(), values or None)
            return found.fetchall() if found.description else []

    def effects(self) -> list[Effect]:
        """In the order of their inserts."""
        found = self.execute(
            f"select job_id::text, token, attempt, pid from {self.effects_table} order by place"
        )
        return [Effect(*row) for row in found]

    def states(self) -> dict[str, JobState]:
        found = self.execute(f'select job_id::text, state from "{self.name}".jobs')
        return {job_id: JobState(state) for job_id, state in found}

    def story(self, job_id: str) -> JobStory:
        with closing(self.jobs.app.store()) as store:
            story = store.job(job_id)
        assert story is not None, f"the store does not know job {job_id}"
        return story

    def events(self) -> list[dict[str, Any]]:
        """The audit trail: of jobs, with their moves, and of breakers."""
        return [decode_event(record.value or b"") for record in self.records(self.names.events)]

    def records(self, topic: str) -> list[Record]:
        options = self.jobs.app.settings.kafka.options
        config = consumer_config(self.servers.bootstrap_servers, group=f"{self.name}.reader", extra=options)
        return list(KafkaReader(config).read(topic))

    def letters(self) -> list[Record]:
        return self.records(self.names.dlq("default"))

    def lag(self) -> int:
        """Records that the group has not committed, over all topics that it reads."""
        positions = self.admin.group_lag(self.group, self.topics).values()
        return sum(position.end - (position.committed or 0) for position in positions)

    def sampler(self) -> OffsetSampler:
        return OffsetSampler(KafkaAdmin(self.jobs.app.admin_config()), self.group, self.topics)

    # --- waiting

    def wait(self, what: str, condition: Callable[[], object], *, timeout: float = 40.0) -> None:
        """Wait for a condition. Fails at once when a worker has ended that was not told to."""

        def met() -> object:
            for worker in self.workers:
                assert worker.running or worker.may_end, f"worker {worker.pid} has ended\n{worker.tail()}"
            return condition()

        wait_until(met, what, timeout=timeout, context=self._context)

    def wait_ended(self, jobs: Sequence[Acked] | None = None, *, timeout: float = 60.0) -> None:
        """Wait until these jobs, or all that were acknowledged, are completed or dead, and committed."""
        wanted = {job.job_id for job in (self.acked() if jobs is None else jobs)}
        ends = (JobState.COMPLETED, JobState.DEAD)

        def ended() -> bool:
            states = self.states()
            return all(states.get(job_id) in ends for job_id in wanted)

        self.wait(f"{len(wanted)} jobs completed or dead", ended, timeout=timeout)

    def wait_committed(self) -> None:
        self.wait("all records committed", lambda: self.lag() == 0)

    def _context(self) -> str:
        counts: dict[str, int] = {}
        for state in self.states().values():
            counts[state] = counts.get(state, 0) + 1
        return "\n".join([f"states: {counts}, lag {self.lag()}", *(worker.tail() for worker in self.workers)])


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else str(value)
