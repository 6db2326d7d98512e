"""The application: job types and handlers declared on it, publishers and workers built by it.

Builds adapters and hands them to the runtime; what a worker is put together of stands in `assembly`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pipeline.adapters.avro.catalog import SchemaCatalog, packaged_schemas_dir
from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.kafka.config import admin_config, producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.postgres.breakers import PostgresBreakers
from pipeline.adapters.postgres.effects import PostgresEffects, connect
from pipeline.adapters.postgres.parked import PostgresParking
from pipeline.adapters.postgres.pruning import PostgresPruning
from pipeline.adapters.postgres.store import PostgresJobStore
from pipeline.adapters.prometheus import PrometheusMetrics
from pipeline.assembly import WorkerBuilder
from pipeline.config import Settings, load_settings
from pipeline.core.backoff import Backoff, RetryPolicy
from pipeline.core.breaker import Breaker
from pipeline.core.clock import SystemClock
from pipeline.core.job_type import ExecutorName, JobType, Order, Payload, Upcaster
from pipeline.core.metrics import Metrics, NoMetrics
from pipeline.core.topics import TopicNames, TopicSpec, declare
from pipeline.errors import ConfigError, SchemaError, UnknownQueue
from pipeline.holds import DEFAULT_BREAKER
from pipeline.lookups import schema_finder, schema_registry, use_registry_ids
from pipeline.runtime.handlers import Registry
from pipeline.runtime.publisher import Publisher
from pipeline.runtime.schemas import Announcer
from pipeline.runtime.worker import Worker

__all__ = ["Pipeline"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Pipeline:
    """Where a service and its workers declare their jobs.

    Settings are read when they are first needed (environment, `pipeline.toml`), so declaring jobs needs none;
    `settings` gives them outright.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._given = settings
        self.registry = Registry()

    @cached_property
    def settings(self) -> Settings:
        """Raises `ConfigError`."""
        return self._given or load_settings()

    def configure(self, settings: Settings) -> None:
        """Use these settings; for commands, before anything else is asked of the application."""
        self.__dict__.pop("settings", None)
        self._given = settings

    # --- declaring

    def job_type(
        self,
        name: str,
        model: type[Payload],
        *,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        permanent: tuple[type[BaseException], ...] = (),
        order: Order = "unordered",
        executor: ExecutorName | None = None,
        concurrency: int | None = None,
        breaker: Breaker | None = DEFAULT_BREAKER,
        deduplicate: bool = True,
        upcasters: Mapping[int, Upcaster] | None = None,
    ) -> JobType[Payload]:
        """Declare a job type. See `JobType` for the arguments. Raises `ConfigError`."""
        declared = JobType(
            name=name,
            model=model,
            queue=queue,
            retry=retry or Backoff(),
            timeout=timeout,
            permanent=permanent,
            order=order,
            executor=executor,
            concurrency=concurrency,
            breaker=breaker,
            deduplicate=deduplicate,
            upcasters=upcasters or {},
        )
        self.registry.declare(declared)
        return declared

    def handler(self, job_type: JobType[Any]) -> Callable[[Function], Function]:
        """Register the decorated function, sync or async, called with (payload) or (payload, context)."""

        def register(function: Function) -> Function:
            self.registry.handle(job_type, function)
            return function

        return register

    def batch_handler(self, job_type: JobType[Any], *, size: int) -> Callable[[Function], Function]:
        """Register a plain function that is called with a list of up to `size` payloads (and a list of contexts).

        It returns None when all jobs succeeded, or for each of them None, an exception or a signal such as `Retry(after=5)`.
        When it raises, each job of the batch has failed with that error. Time limits are for the batch.
        """

        def register(function: Function) -> Function:
            self.registry.handle_batches(job_type, function, size=size)
            return function

        return register

    # --- building

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.settings.namespace)

    def topics(self) -> list[TopicSpec]:
        """Every topic that the settings declare."""
        settings = self.settings
        return declare(
            self.names, queues=settings.queues, tiers=settings.retry.tiers, settings=settings.topics.to_core()
        )

    def codec(self) -> AvroCodec:
        """A codec that knows every declared job type. Raises `SchemaError`.

        Nothing is connected until a payload comes whose schema must be looked up.
        """
        codec = AvroCodec(SchemaCatalog(self._schemas_dir()), schema_finder(self.settings))
        for job_type in self.registry.job_types():
            codec.register(job_type.name, job_type.model, job_type.upcasters)
        return codec

    def publisher(self, *, source: str | None = None, metrics: Metrics | None = None) -> Publisher:
        """A publisher, to be closed (it is a context manager). `source` names the service in each job's headers.

        Raises `ConfigError`, `SchemaError`, and `RegistryUnavailable` where there is a schema registry: it is asked for
        the id of each job type's schema. Kafka is not asked anything yet.
        """
        settings, codec = self.settings, self.codec()
        registry = schema_registry(settings)
        if registry is not None:
            use_registry_ids(codec, registry, self.registry)
        producer = self.producer(settings.topics.max_message_bytes, linger_ms=settings.publisher.linger_ms)
        announcer = Announcer(
            producer=producer, topic=self.names.schemas, written=codec.written, clock=SystemClock()
        )
        return Publisher(
            registry=self.registry,
            producer=producer,
            codec=codec,
            announce=None if registry else announcer,
            names=self.names,
            queues=settings.queues,
            source=source or Path(sys.argv[0] or "python").name,
            clock=SystemClock(),
            metrics=metrics or NoMetrics(),
            timeout=settings.publisher.timeout,
        )

    def store(self) -> PostgresJobStore:
        """The store, to be closed."""
        postgres = self.settings.postgres
        return PostgresJobStore(
            postgres.dsn.get_secret_value(),
            schema=postgres.schema_name,
            connect_timeout=postgres.connect_timeout,
        )

    def connection(self) -> AbstractContextManager[Any]:
        """A plain psycopg connection to the database of the store, in autocommit mode: for scripts and set-up."""
        return connect(self.settings.postgres.dsn.get_secret_value(), self.settings.postgres.connect_timeout)

    def breakers(self) -> PostgresBreakers:
        """The breakers that all workers share; to be closed."""
        postgres = self.settings.postgres
        return PostgresBreakers(
            postgres.dsn.get_secret_value(),
            schema=postgres.schema_name,
            connect_timeout=postgres.connect_timeout,
        )

    def parking(self) -> PostgresParking:
        """Where records lie that were too large for their topic; to be closed."""
        postgres = self.settings.postgres
        return PostgresParking(
            postgres.dsn.get_secret_value(),
            schema=postgres.schema_name,
            connect_timeout=postgres.connect_timeout,
        )

    def pruning(self) -> PostgresPruning:
        """What forgets jobs that ended long ago; to be closed."""
        postgres = self.settings.postgres
        return PostgresPruning(
            postgres.dsn.get_secret_value(),
            schema=postgres.schema_name,
            connect_timeout=postgres.connect_timeout,
        )

    def effects(self) -> PostgresEffects:
        """Transactions for handlers, to be closed."""
        postgres = self.settings.postgres
        return PostgresEffects(
            postgres.dsn.get_secret_value(),
            schema=postgres.schema_name,
            connect_timeout=postgres.connect_timeout,
            idle_timeout=postgres.handler_idle_timeout,
            most=self.settings.worker.concurrency,
        )

    def metrics(self) -> PrometheusMetrics:
        return PrometheusMetrics(self.registry.names())

    def worker(
        self, *, queue: str | None = None, metrics: Metrics | None = None, target: str | None = None
    ) -> Worker:
        """A worker of one queue (by default the only one), ready to `run`. Raises `ConfigError`, `SchemaError`.

        `target` (`module:attribute`) is where a child process finds this application. Without it no handler can run in a
        process, and jobs whose worker died are run like others: one that kills its process may kill this one, too.
        """
        return WorkerBuilder(self, self._queue(queue), metrics or NoMetrics(), target).build()

    def _queue(self, queue: str | None) -> str:
        queues = self.settings.queues
        if queue is None and len(queues) > 1:
            raise ConfigError(f"which queue? The setting queues has {len(queues)}: {', '.join(queues)}")
        if queue is not None and queue not in queues:
            raise UnknownQueue(f"queue is {queue!r}; allowed by the setting queues: {', '.join(queues)}")
        return queue or queues[0]

    def _schemas_dir(self) -> Path:
        chosen = self.settings.schemas_dir
        if chosen is not None:
            return chosen
        if Path("schemas").is_dir():
            return Path("schemas")
        packaged = packaged_schemas_dir()
        if packaged is None:
            raise SchemaError("no schemas found; set schemas_dir to the folder that has <job type>/v1.avsc")
        return packaged

    def client_options(self, kind: str) -> Mapping[str, str]:
        """Librdkafka options for a `kind` of client: producer or consumer."""
        kafka = self.settings.kafka
        own = kafka.producer_options if kind == "producer" else kafka.consumer_options
        return {**kafka.options, **own}

    def admin_config(self) -> dict[str, Any]:
        """For clients that ask about topics and groups."""
        return admin_config(self.settings.kafka.bootstrap_servers, extra=self.settings.kafka.options)

    def producer(self, max_message_bytes: int, *, linger_ms: float) -> KafkaJobProducer:
        """A producer of records up to a size, to be closed."""
        settings = self.settings
        config = producer_config(
            settings.kafka.bootstrap_servers,
            linger_ms=linger_ms,
            compression=settings.publisher.compression,
            delivery_timeout=settings.publisher.timeout,
            extra=self.client_options("producer"),
        )
        return KafkaJobProducer(
            config,
            max_message_bytes=max_message_bytes,
            max_batch_bytes=min(max_message_bytes, settings.topics.max_message_bytes),
            buffer_timeout=settings.publisher.buffer_timeout,
        )
