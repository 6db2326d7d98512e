"""Wiring of the dead-letter desk. Beside `app`, the only module that hands adapters to the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.kafka.config import consumer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.adapters.postgres.letters import PostgresLetterStates
from pipeline.app import Pipeline
from pipeline.core.letters import Letter
from pipeline.core.story import JobStory
from pipeline.core.topics import ERROR_HEADROOM_BYTES
from pipeline.errors import DatabaseNotMigrated, PipelineError, StoreUnavailable
from pipeline.runtime.dlq import Desk
from pipeline.runtime.dlq_replay import Replayer

__all__ = ["OpenedLetter", "desk", "open_letter", "replay_producer", "replayer"]


def desk(app: Pipeline) -> Desk:
    """Where letters are found. Nothing is connected yet. Raises `ConfigError`."""
    settings = app.settings
    config = consumer_config(
        settings.kafka.bootstrap_servers,
        group=f"{settings.namespace}.desk",  # librdkafka wants one; it is never joined
        extra=app.client_options("consumer"),
    )
    source = KafkaReader(config, timeout=settings.kafka.request_timeout)
    return Desk(source=source, names=app.names, queues=settings.queues)


@contextmanager
def replayer(app: Pipeline) -> Iterator[Replayer]:
    """Plans and replays. Raises `ConfigError`, `SchemaError`."""
    postgres = app.settings.postgres
    states = PostgresLetterStates(
        postgres.dsn.get_secret_value(), schema=postgres.schema_name, connect_timeout=postgres.connect_timeout
    )
    with closing(states):
        yield Replayer(
            desk=desk(app),
            states=states,
            describe=app.codec().describe,
            names=app.names,
            declared=[spec.name for spec in app.topics()],
        )


@contextmanager
def replay_producer(app: Pipeline) -> Iterator[KafkaJobProducer]:
    """What replays are written with: main topics take what was dead, with the headers that it had then."""
    limit = app.settings.topics.max_message_bytes + ERROR_HEADROOM_BYTES
    with closing(app._producer(limit)) as producer:  # noqa: SLF001 - wiring, as in app itself
        yield producer


class OpenedLetter(NamedTuple):
    """A letter's payload, and what the store knows of its job. What could not be had says why.

    `refused` is why the job type that the application declares today would not take a payload that is sound.
    """

    payload: dict[str, object] | None
    undecodable: str
    refused: str
    story: JobStory | None
    store_problem: str


def open_letter(app: Pipeline, letter: Letter) -> OpenedLetter:
    """Raises `SchemaError` and `ConfigError` for what is wrong with the application or its settings."""
    return OpenedLetter(*_payload(app.codec(), app, letter), *_story(app, letter.job.job_id))


def _payload(codec: AvroCodec, app: Pipeline, letter: Letter) -> tuple[dict[str, object] | None, str, str]:
    job_type, data, schema_id = letter.job.job_type, letter.record.value or b"", letter.job.schema_id
    try:
        described = codec.describe(job_type, data, schema_id)
    except PipelineError as error:
        return None, str(error), ""
    try:
        if any(declared.name == job_type for declared in app.registry.job_types()):
            codec.decode(job_type, data, schema_id)
    except PipelineError as error:
        return described, "", str(error)
    return described, "", ""


def _story(app: Pipeline, job_id: str) -> tuple[JobStory | None, str]:
    with closing(app.store()) as store:
        try:
            return store.job(job_id), ""
        except (StoreUnavailable, DatabaseNotMigrated) as error:
            return None, str(error)
