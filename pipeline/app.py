"""The application: job types and handlers declared on it, publishers and workers built by it.

The only module that builds adapters and hands them to the runtime.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pipeline.adapters.avro.catalog import SchemaCatalog, packaged_schemas_dir
from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.avro.events import encode_event
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import Conf, admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.probe import KafkaProbe
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.split import SplitConsumer
from pipeline.adapters.postgres.breakers import PostgresBreakers
from pipeline.adapters.postgres.effects import PostgresEffects, connect
from pipeline.adapters.postgres.parked import PostgresParking
from pipeline.adapters.postgres.store import PostgresJobStore
from pipeline.adapters.prometheus import PrometheusMetrics
from pipeline.config import Settings, load_settings
from pipeline.core.backoff import Backoff, RetryPolicy
from pipeline.core.breaker import Breaker
from pipeline.core.clock import Clock, SystemClock
from pipeline.core.job_type import ExecutorName, JobType, Order, Payload, Upcaster
from pipeline.core.metrics import Metrics, NoMetrics
from pipeline.core.ports import WorkerInfo
from pipeline.core.topics import ERROR_HEADROOM_BYTES, TopicNames, TopicSpec, declare
from pipeline.errors import ConfigError, SchemaError, UnknownQueue
from pipeline.holds import DEFAULT_BREAKER, build_breakers, longest_wait, shelf_limits
from pipeline.logs import MoveLog
from pipeline.lookups import schema_finder, schema_registry, use_registry_ids
from pipeline.pools import ChildPools
from pipeline.runtime.breakers import Breakers, BreakerSettings
from pipeline.runtime.buffer import Buffer, Limits
from pipeline.runtime.claimer import Claimer
from pipeline.runtime.contexts import Contexts
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.dlq_depth import DepthGauge
from pipeline.runtime.events import EventSink
from pipeline.runtime.executors import AsyncExecutor, Executor, ThreadExecutor
from pipeline.runtime.executors.base import OnRuns
from pipeline.runtime.handlers import ASYNC, PROCESS, SUSPECT, THREAD, Registry
from pipeline.runtime.heartbeat import Heartbeat
from pipeline.runtime.intake import Intake, IntakeSettings
from pipeline.runtime.publisher import Publisher
from pipeline.runtime.retention import RetentionWatch
from pipeline.runtime.schemas import Announcer
from pipeline.runtime.settle_loop import Results, SettleLoop
from pipeline.runtime.settler import Settler
from pipeline.runtime.shelf import ShelvingBuffer
from pipeline.runtime.time import StoreClock
from pipeline.runtime.watchdog import Watchdog
from pipeline.runtime.worker import Worker, WorkerParts, WorkerSettings

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
        producer = self._producer(settings.topics.max_message_bytes)
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

    def effects(self) -> PostgresEffects:
        """Transactions for handlers, to be closed."""
        postgres = self.settings.postgres
        return PostgresEffects(
            postgres.dsn.get_secret_value(),
            schema=postgres.schema_name,
            connect_timeout=postgres.connect_timeout,
            most=self.settings.worker.concurrency,
        )

    def metrics(self) -> PrometheusMetrics:
        return PrometheusMetrics(_Names(self.registry))

    def worker(
        self, *, queue: str | None = None, metrics: Metrics | None = None, target: str | None = None
    ) -> Worker:
        """A worker of one queue (by default the only one), ready to `run`. Raises `ConfigError`, `SchemaError`.

        `target` (`module:attribute`) is where a child process finds this application. Without it no handler can run in a
        process, and jobs whose worker died are run like others: one that kills its process may kill this one, too.
        """
        return _WorkerBuilder(self, self._queue(queue), metrics or NoMetrics(), target).build()

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

    def _producer(self, max_message_bytes: int) -> KafkaJobProducer:
        settings = self.settings
        config = producer_config(
            settings.kafka.bootstrap_servers,
            linger_ms=settings.publisher.linger_ms,
            compression=settings.publisher.compression,
            delivery_timeout=settings.publisher.timeout,
            extra=self.client_options("producer"),
        )
        return KafkaJobProducer(
            config, max_message_bytes=max_message_bytes, buffer_timeout=settings.publisher.buffer_timeout
        )


class _Names(Collection[str]):
    """The declared job types' names, as a live collection."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __contains__(self, name: object) -> bool:
        return any(job_type.name == name for job_type in self._registry.job_types())

    def __iter__(self) -> Iterator[str]:
        return (job_type.name for job_type in self._registry.job_types())

    def __len__(self) -> int:
        return len(self._registry.job_types())


class _WorkerBuilder:
    """Puts one worker together."""

    def __init__(self, app: Pipeline, queue: str, metrics: Metrics, target: str | None) -> None:
        self._app = app
        self._queue = queue
        self._metrics = metrics
        self._settings = app.settings
        self._names = app.names
        self._group = self._settings.kafka.group or f"{self._settings.namespace}.{queue}"
        self._worker_id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._pools = ChildPools(target, self._settings, app.registry, worker_id=self._worker_id)
        self._retry_topics = frozenset(self._names.retry(queue, tier) for tier in self._settings.retry.tiers)
        self._clock: Clock = SystemClock()
        self._store_clock = StoreClock(self._clock)

    def build(self) -> Worker:
        settings, results = self._settings, Results()
        codec = self._app.codec()
        lanes = (THREAD, ASYNC, PROCESS, SUSPECT)
        limits = {t.name: t.concurrency for t in self._app.registry.job_types() if t.concurrency}
        buffer = ShelvingBuffer(
            lanes=lanes,
            lane_of=self._lane_of,
            is_retry=self._is_retry,
            in_order=self._in_order(),
            concurrency=limits,
        )
        on_runs = _freeing(buffer, results.put) if limits else results.put
        store = self._app.store()
        effects = self._app.effects()
        heartbeat = self._heartbeat(store)
        contexts = Contexts(
            worker_id=self._worker_id, effects=effects, alive=heartbeat.alive, clock=self._store_clock
        )
        # The DLQ takes what the main topics took plus the headers that tell of errors.
        producer = self._app._producer(settings.topics.max_message_bytes + ERROR_HEADROOM_BYTES)  # noqa: SLF001
        events = self._events(producer)
        consumer = self._consumer()
        intake = self._intake(consumer, buffer, events)
        parking = self._app.parking()
        settler = self._settler(buffer, store, producer, events, parking, results)
        settling = SettleLoop(settler, results, batch_max=settings.worker.batch_max, clock=self._store_clock)
        breakers = self._breakers(buffer, results, settling)
        settling.on_run = breakers.note
        parts = WorkerParts(
            consumer=consumer,
            producer=producer,
            store=store,
            effects=effects,
            buffer=buffer,
            intake=intake,
            claimer=self._claimer(buffer, store, codec, events, results),
            settling=settling,
            breakers=breakers,
            executors=self._executors(buffer, contexts, on_runs, heartbeat),
            events=events,
            heartbeat=heartbeat,
            metrics=self._metrics,
            parking=parking,
            retention=self._retention(intake, buffer),
            clock=self._store_clock,
            watchdog=self._watchdog(consumer, intake),
            dlq_depth=DepthGauge(count=store.open_letters, metrics=self._metrics, queue=self._queue),
        )
        return Worker(
            parts,
            WorkerSettings(
                worker_id=self._worker_id,
                queue=self._queue,
                topics=[self._names.main(self._queue), *sorted(self._retry_topics)],
                batch_max=settings.worker.batch_max,
                drain_timeout=settings.worker.drain_timeout,
            ),
        )

    def _lane_of(self, delivery: Delivery) -> str:
        handler = self._app.registry.handler(delivery.job.job_type)
        return handler.lane if handler else THREAD

    def _is_retry(self, topic: str) -> bool:
        return topic in self._retry_topics

    def _consumer(self) -> SplitConsumer:
        main, retry = self._member(""), self._member("-retry")
        return SplitConsumer(main, retry, is_second=self._is_retry)

    def _watchdog(self, consumer: SplitConsumer, intake: Intake) -> Watchdog:
        return Watchdog(
            consumer=consumer,
            progress=intake.progress,
            probe=KafkaProbe(self._member_config(""), timeout=self._settings.kafka.request_timeout),
            metrics=self._metrics,
            queue=self._queue,
            clock=self._clock,
            patience=self._settings.worker.stuck_after,
        )

    def _member(self, suffix: str) -> KafkaJobConsumer:
        return KafkaJobConsumer(self._member_config(suffix), timeout=self._settings.kafka.request_timeout)

    def _member_config(self, suffix: str) -> Conf:
        kafka, worker = self._settings.kafka, self._settings.worker
        extra = dict(self._app.client_options("consumer"))
        static = extra.pop("group.instance.id", worker.static_member_id)
        return consumer_config(
            kafka.bootstrap_servers,
            group=self._group,
            protocol=worker.rebalance_protocol,
            static_member_id=static + suffix if static else "",
            session_timeout=worker.session_timeout,
            max_poll_interval=worker.max_poll_interval,
            extra=extra,
        )

    def _events(self, producer: KafkaJobProducer) -> EventSink:
        log = MoveLog(sys.stderr, enabled=self._settings.log.moves, format=self._settings.log.format)
        return EventSink(
            producer=producer, topic=self._names.events, encode=encode_event, write_log=log.write
        )

    def _intake(self, consumer: SplitConsumer, buffer: Buffer, events: EventSink) -> Intake:
        worker = self._settings.worker
        return Intake(
            consumer=consumer,
            buffer=buffer,
            settings=IntakeSettings(
                poll_batch=worker.poll_batch,
                commit_interval=worker.commit_interval,
                revoke_timeout=worker.revoke_timeout,
                limits=Limits(
                    worker.buffer_jobs,
                    int(worker.buffer_mb * 1e6),
                    worker.delay_buffer_jobs,
                    worker.ahead_max,
                ),
            ),
            queue_of=lambda topic: self._names.queue_of(topic) or self._queue,
            is_retry=self._is_retry,
            clock=self._store_clock,
            events=events,
        )

    def _claimer(
        self, buffer: Buffer, store: PostgresJobStore, codec: AvroCodec, events: EventSink, results: Results
    ) -> Claimer:
        return Claimer(
            worker_id=self._worker_id,
            buffer=buffer,
            store=store,
            codec=codec,
            registry=self._app.registry,
            clock=self._store_clock,
            metrics=self._metrics,
            events=events,
            held_recheck=self._settings.worker.held_recheck,
            isolate=self._pools.isolate,
            on_runs=results.put,
        )

    def _retention(self, intake: Intake, buffer: Buffer) -> RetentionWatch:
        kafka = self._settings.kafka
        tiers = {self._names.retry(self._queue, tier): tier for tier in self._settings.retry.tiers}
        return RetentionWatch(
            intake,
            logs=KafkaAdmin(self._app.admin_config(), timeout=min(5.0, kafka.request_timeout)),
            group=self._group,
            queue=self._queue,
            waits={self._names.main(self._queue): None, **tiers},
            outage=self._settings.retry.outage_allowance,
            begin=buffer.begin,
            metrics=self._metrics,
        )

    def _breakers(self, buffer: ShelvingBuffer, results: Results, settling: SettleLoop) -> Breakers:
        return build_breakers(
            self._app.registry,
            self._app.breakers(),
            BreakerSettings(
                worker_id=self._worker_id,
                queue=self._queue,
                lease=self._settings.worker.lease,
                **shelf_limits(self._settings.worker),
            ),
            buffer=buffer,
            is_retry=self._is_retry,
            clock=self._store_clock,
            metrics=self._metrics,
            on_runs=results.put,
            stuck=settling.stuck_types,
        )

    def _settler(
        self,
        buffer: Buffer,
        store: PostgresJobStore,
        producer: KafkaJobProducer,
        events: EventSink,
        parking: PostgresParking,
        results: Results,
    ) -> Settler:
        policies = {job_type.name: job_type.retry for job_type in self._app.registry.job_types()}
        return Settler(
            worker_id=self._worker_id,
            group=self._group,
            buffer=buffer,
            store=store,
            producer=producer,
            names=self._names,
            tiers=self._settings.retry.tiers,
            policy_of=policies.get,
            clock=self._store_clock,
            rng=random.SystemRandom(),
            metrics=self._metrics,
            events=events,
            held_recheck=self._settings.worker.held_recheck,
            in_order=self._in_order(),
            parking=parking,
            on_arrival=results.wake,
            longest_wait=longest_wait(self._settings),
        )

    def _in_order(self) -> list[str]:
        return [job_type.name for job_type in self._app.registry.job_types() if job_type.order == "key"]

    def _executors(
        self, buffer: Buffer, contexts: Contexts, on_runs: OnRuns, heartbeat: Heartbeat
    ) -> dict[str, Executor]:
        worker = self._settings.worker
        return {
            THREAD: ThreadExecutor(
                slots=worker.concurrency,
                most_ahead=worker.batch_max,
                clock=self._store_clock,
                contexts=contexts.of,
                on_runs=on_runs,
                on_room=buffer.wake,
            ),
            ASYNC: AsyncExecutor(
                slots=worker.async_concurrency,
                most_ahead=worker.batch_max,
                clock=self._store_clock,
                contexts=contexts.of,
                on_runs=on_runs,
                on_room=buffer.wake,
            ),
            **self._pools.executors(
                clock=self._store_clock, alive=heartbeat.alive, on_runs=on_runs, on_room=buffer.wake
            ),
        }

    def _heartbeat(self, store: PostgresJobStore) -> Heartbeat:
        worker = self._settings.worker
        info = WorkerInfo(self._worker_id, socket.gethostname(), os.getpid(), (self._queue,), worker.lease)
        return Heartbeat(
            store=store,
            worker=info,
            interval=worker.heartbeat_interval,
            clock=self._clock,
            store_clock=self._store_clock,
        )


def _freeing(buffer: Buffer, put: OnRuns) -> OnRuns:
    """Give places of job types with a limit back when runs end, rather than when they are settled."""

    def on_runs(runs: Sequence[Run]) -> None:
        buffer.run_over(run.delivery for run in runs)
        put(runs)

    return on_runs
