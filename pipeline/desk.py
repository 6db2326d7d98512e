"""Wiring of the dead-letter desk. Beside `app`, the only module that hands adapters to the runtime."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

from pydantic import ValidationError

from pipeline.adapters.avro.catalog import SchemaCatalog
from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import consumer_config
from pipeline.adapters.kafka.spans import KafkaSpans
from pipeline.adapters.postgres.letter_index import PostgresLetterIndex
from pipeline.adapters.postgres.letter_reading import GROUPS
from pipeline.app import Pipeline
from pipeline.core.clock import SystemClock
from pipeline.core.desk import Task, Told
from pipeline.core.letter_facts import schema_ref
from pipeline.core.letters import Letter
from pipeline.core.story import JobStory
from pipeline.core.topics import ERROR_HEADROOM_BYTES
from pipeline.errors import (
    DatabaseNotMigrated,
    InvalidJob,
    PipelineError,
    SchemaError,
    StoreUnavailable,
    TopicsMissing,
)
from pipeline.runtime.dlq import Desk
from pipeline.runtime.dlq_pace import Pace
from pipeline.runtime.dlq_records import Targets, main_topics, whole
from pipeline.runtime.dlq_replay import Tools

__all__ = ["GROUPS", "OpenDesk", "OpenedLetter", "open_desk", "open_letter"]


class OpenDesk:
    """The desk of an application, with what it needs. Made by `open_desk`; nothing is connected before it is needed."""

    def __init__(self, app: Pipeline, index: PostgresLetterIndex) -> None:
        settings = app.settings
        names = app.names
        self.app = app
        self.index = index
        self.topics = {queue: names.dlq(queue) for queue in settings.queues}
        self.topics |= {topic: topic for topic in settings.dlq.topics}
        self._declared = [spec.name for spec in app.topics()]
        self.desk = Desk(index=index, source=self.source, topics=self.topics)

    @cached_property
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.app.admin_config(), timeout=self.app.settings.kafka.request_timeout)

    @cached_property
    def source(self) -> KafkaSpans:
        settings = self.app.settings
        config = consumer_config(
            settings.kafka.bootstrap_servers,
            group=f"{settings.namespace}.desk",  # librdkafka wants one; it is never joined
            extra=self.app.client_options("consumer"),
        )
        return KafkaSpans(config, self.admin, timeout=settings.kafka.request_timeout)

    @cached_property
    def codec(self) -> AvroCodec:
        """Raises `SchemaError`."""
        return self.app.codec()

    def targets(self, to: str = "") -> Targets:
        """Raises `ConfigError` when `to` is no main topic."""
        return Targets(names=self.app.names, declared=self._declared, letters=self.topics.values(), to=to)

    def check_schema(self, job_type: str, schema: str) -> str:
        """The name of a schema that letters refer to. Raises where their payloads could not be decoded."""
        return self.codec.label(job_type, schema_ref(schema))

    def encode(self, job_type: str, payload: str) -> bytes:
        """A payload in JSON as its job type takes it. Raises `InvalidJob`, `UnknownJobType`, `SchemaError`."""
        declared = self.app.registry.job_type(job_type)
        try:
            values = declared.model.model_validate_json(payload)
        except ValidationError as error:
            faults = [".".join(map(str, fault["loc"])) + f": {fault['msg']}" for fault in error.errors()]
            raise InvalidJob(f"payload of job type {job_type!r}: {'; '.join(faults)}") from None
        return self.codec.encode(job_type, values)

    def fingerprint(self, job_type: str, version: int) -> str:
        """How payloads refer to a packaged schema. Raises `SchemaError` when there is none of that version."""
        versions = SchemaCatalog(self.app._schemas_dir()).versions(job_type)  # noqa: SLF001 - wiring, as in app itself
        for each in versions:
            if each.version == version:
                return each.fingerprint.hex()
        raise SchemaError(f"{job_type} has no version {version}; there are {len(versions)}")

    def absent(self, topics: Collection[str]) -> list[str]:
        """Those of the topics that do not exist. Raises `BrokerUnavailable`."""
        there = self.admin.describe(sorted(topics))
        return [topic for topic in sorted(topics) if topic not in there]

    def retention(self, queue: str) -> float:
        """How long the DLQ topic of a queue keeps a record, in seconds; infinite for ever."""
        state = self.admin.describe([self.topics[queue]]).get(self.topics[queue])
        millis = float(state.config.get("retention.ms", "-1")) if state else -1.0
        return millis / 1000 if millis >= 0 else float("inf")

    @contextmanager
    def tools(
        self,
        *,
        targets: Targets,
        watched: Collection[str],
        rate: float,
        max_lag: int,
        stop: threading.Event,
    ) -> Iterator[Tools]:
        """What a replay works with. It looks at the lag of the `watched` topics; `stop` ends it in order."""
        settings = self.app.settings
        # Main topics take what was dead, with the headers that it had then.
        limit = settings.topics.max_message_bytes + ERROR_HEADROOM_BYTES
        with ExitStack() as stack:
            producer = stack.enter_context(closing(self.app.producer(limit, linger_ms=5.0)))
            parking = stack.enter_context(closing(self.app.parking()))
            yield Tools(
                index=self.index,
                source=self.source,
                parking=parking,
                topics=self.topics,
                max_replays=settings.dlq.max_replays,
                producer=producer,
                targets=targets,
                pace=Pace(
                    rate=rate,
                    max_lag=max_lag,
                    lags=lambda: self._lags(watched),
                    clock=SystemClock(),
                    stop=stop,
                ),
            )

    def _lags(self, watched: Collection[str]) -> Mapping[str, int]:
        """How far the workers of main topics are behind. Of topics of others nobody knows who reads them."""
        lags = {}
        for topic in set(watched).intersection(main_topics(self.app.names, self._declared)):
            with suppress(TopicsMissing):  # to send there will say so
                lags[topic] = self._lag(topic)
        return lags

    def _lag(self, topic: str) -> int:
        settings = self.app.settings
        group = settings.kafka.group or f"{settings.namespace}.{self.app.names.queue_of(topic)}"
        starts = self.admin.start_offsets([topic])
        positions = self.admin.group_lag(group, [topic])
        return sum(
            position.end - (starts[partition] if position.committed is None else position.committed)
            for partition, position in positions.items()
        )


@contextmanager
def open_desk(app: Pipeline) -> Iterator[OpenDesk]:
    """Raises `ConfigError`."""
    postgres = app.settings.postgres
    index = PostgresLetterIndex(
        postgres.dsn.get_secret_value(), schema=postgres.schema_name, connect_timeout=postgres.connect_timeout
    )
    with closing(index):
        yield OpenDesk(app, index)


class OpenedLetter(NamedTuple):
    """A letter's payload, and what the store knows of its job. What could not be had says why.

    `refused` is why the job type that the application declares today would not take a payload that is sound; `told` is
    what was done with the job's letters, and `tasks` are those that did it.
    """

    payload: dict[str, object] | None
    undecodable: str
    refused: str
    story: JobStory | None
    told: list[Told]
    tasks: Mapping[int, Task]
    store_problem: str


def open_letter(opened: OpenDesk, letter: Letter) -> OpenedLetter:
    """Raises `SchemaError` and `ConfigError` for what is wrong with the application or its settings."""
    payload, undecodable, refused = _payload(opened, letter)
    story, told, tasks, store_problem = _story(opened, letter.job.job_id)
    return OpenedLetter(payload, undecodable, refused, story, told, tasks, store_problem)


def _payload(opened: OpenDesk, letter: Letter) -> tuple[dict[str, object] | None, str, str]:
    job_type, codec = letter.job.job_type, opened.codec
    try:
        with closing(opened.app.parking()) as parking:
            full = whole(letter, parking)
        data, schema_id = full.record.value or b"", full.job.schema_id
        described = codec.describe(job_type, data, schema_id)
    except PipelineError as error:
        return None, str(error), ""
    try:
        if any(declared.name == job_type for declared in opened.app.registry.job_types()):
            codec.decode(job_type, data, schema_id)
    except PipelineError as error:
        return described, "", str(error)
    return described, "", ""


def _story(opened: OpenDesk, job_id: str) -> tuple[JobStory | None, list[Told], Mapping[int, Task], str]:
    index = opened.index
    with closing(opened.app.store()) as store:
        try:
            told = index.outcomes_of_letter(job_id)
            tasks = {number: index.tasks(task=number)[0] for number in {each.task for each in told}}
            return store.job(job_id), told, tasks, ""
        except (StoreUnavailable, DatabaseNotMigrated) as error:
            return None, [], {}, str(error)
