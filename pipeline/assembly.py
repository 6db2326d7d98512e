"""Puts a worker together: adapters, buffer, threads. Wiring, like `app`, whose settings and names it uses."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeline.adapters.avro.codec import AvroCodec
from pipeline.adapters.avro.events import encode_breaker_event, encode_event
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import Conf, consumer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.probe import KafkaProbe
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.split import SplitConsumer
from pipeline.adapters.postgres.effects import PostgresEffects
from pipeline.adapters.postgres.parked import PostgresParking
from pipeline.adapters.postgres.store import PostgresJobStore
from pipeline.core.clock import Clock, SystemClock
from pipeline.core.metrics import Metrics
from pipeline.core.ports import WorkerInfo
from pipeline.core.topics import ERROR_HEADROOM_BYTES
from pipeline.holds import build_breakers, kept_in_place, longest_wait, shelf_limits
from pipeline.logs import MoveLog
from pipeline.pools import ChildPools
from pipeline.runtime.breakers import Breakers, BreakerSettings
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.claimer import Claimer
from pipeline.runtime.contexts import Contexts
from pipeline.runtime.delivery import Run
from pipeline.runtime.dlq_depth import DepthGauge
from pipeline.runtime.events import EventSink
from pipeline.runtime.executors import AsyncExecutor, Executor, ThreadExecutor
from pipeline.runtime.executors.base import OnRuns
from pipeline.runtime.handlers import ASYNC, PROCESS, SUSPECT, THREAD
from pipeline.runtime.heartbeat import Heartbeat
from pipeline.runtime.held import Limits
from pipeline.runtime.intake import Intake, IntakeSettings
from pipeline.runtime.pruning import Pruner
from pipeline.runtime.retention import RetentionWatch
from pipeline.runtime.settle_loop import Results, SettleLoop
from pipeline.runtime.settler import Settler
from pipeline.runtime.shelf import ShelvingBuffer
from pipeline.runtime.time import CautiousClock, StoreClock
from pipeline.runtime.watchdog import Watchdog
from pipeline.runtime.worker import Worker, WorkerParts, WorkerSettings

if TYPE_CHECKING:
    from pipeline.app import Pipeline

__all__ = ["WorkerBuilder"]

# A worker writes for many jobs at a time: its records may wait for company.
LINGER_MS = 5.0


class _Core(NamedTuple):
    """What several parts of a worker share."""

    codec: AvroCodec
    buffer: ShelvingBuffer
    results: Results
    store: PostgresJobStore
    producer: KafkaJobProducer
    events: EventSink
    heartbeat: Heartbeat
    parking: PostgresParking
    effects: PostgresEffects


class WorkerBuilder:
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
        worker = self._settings.worker
        return Worker(
            self._parts(self._core()),
            WorkerSettings(
                worker_id=self._worker_id,
                queue=self._queue,
                topics=[self._names.main(self._queue), *sorted(self._retry_topics)],
                batch_max=worker.batch_max,
                drain_timeout=worker.drain_timeout,
            ),
        )

    def _core(self) -> _Core:
        codec = self._app.codec()  # first: what may be wrong with it leaves nothing open
        store = self._app.store()
        # The DLQ takes what the main topics took plus the headers that tell of errors.
        producer = self._app.producer(
            self._settings.topics.max_message_bytes + ERROR_HEADROOM_BYTES, linger_ms=LINGER_MS
        )
        return _Core(
            codec=codec,
            buffer=self._buffer(),
            results=Results(),
            store=store,
            producer=producer,
            events=self._events(producer),
            heartbeat=self._heartbeat(store),
            parking=self._app.parking(),
            effects=self._app.effects(),
        )

    def _parts(self, core: _Core) -> WorkerParts:
        consumer = self._consumer()
        intake = self._intake(consumer, core)
        settling = SettleLoop(
            self._settler(core),
            core.results,
            batch_max=self._settings.worker.batch_max,
            clock=self._store_clock,
            in_flight=core.buffer.in_flight,
        )
        breakers = self._breakers(core, settling)
        settling.on_runs = breakers.note
        return WorkerParts(
            consumer=consumer,
            producer=core.producer,
            store=core.store,
            effects=core.effects,
            buffer=core.buffer,
            intake=intake,
            claimer=self._claimer(core),
            settling=settling,
            breakers=breakers,
            executors=self._executors(core),
            events=core.events,
            heartbeat=core.heartbeat,
            metrics=self._metrics,
            parking=core.parking,
            retention=self._retention(intake, core.buffer),
            due_clock=CautiousClock(self._store_clock),
            clock=self._store_clock,
            watchdog=self._watchdog(consumer, intake),
            dlq_depth=DepthGauge(count=core.store.open_letters, metrics=self._metrics, queue=self._queue),
            pruner=self._pruner(),
        )

    def _buffer(self) -> ShelvingBuffer:
        return ShelvingBuffer(
            BufferSettings(
                lanes=(THREAD, ASYNC, PROCESS, SUSPECT),
                lane_of=self._lane_of,
                is_retry=self._is_retry,
                in_order=self._in_order(),
                concurrency=self._places(),
            )
        )

    def _places(self) -> dict[str, int]:
        """How many jobs of a type may run at a time, where its type says so."""
        return {t.name: t.concurrency for t in self._app.registry.job_types() if t.concurrency}

    def _pruner(self) -> Pruner:
        keep = self._settings.postgres.retention
        return Pruner(
            pruning=self._app.pruning(),
            keep=None if keep == -1 else keep,
            metrics=self._metrics,
            clock=self._clock,
            rng=random.SystemRandom(),
        )

    def _lane_of(self, job_type: str) -> str:
        handler = self._app.registry.handler(job_type)
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

    def _intake(self, consumer: SplitConsumer, core: _Core) -> Intake:
        worker = self._settings.worker
        return Intake(
            consumer=consumer,
            buffer=core.buffer,
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
            clock=CautiousClock(self._store_clock),
            events=core.events,
        )

    def _claimer(self, core: _Core) -> Claimer:
        return Claimer(
            worker_id=self._worker_id,
            buffer=core.buffer,
            store=core.store,
            codec=core.codec,
            registry=self._app.registry,
            clock=self._store_clock,
            metrics=self._metrics,
            events=core.events,
            held_recheck=self._settings.worker.held_recheck,
            isolate=self._pools.isolate,
            on_runs=core.results.put,
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
            gaps=buffer.take_gaps,
            metrics=self._metrics,
        )

    def _breakers(self, core: _Core, settling: SettleLoop) -> Breakers:
        return build_breakers(
            self._app.registry,
            self._app.breakers(),
            BreakerSettings(
                worker_id=self._worker_id,
                queue=self._queue,
                lease=self._settings.worker.lease,
                **shelf_limits(self._settings.worker),
            ),
            buffer=core.buffer,
            is_retry=self._is_retry,
            clock=self._store_clock,
            metrics=self._metrics,
            on_change=lambda change: core.events.note(change.job_type, encode_breaker_event(change)),
            on_runs=core.results.put,
            stuck=settling.stuck_types,
        )

    def _settler(self, core: _Core) -> Settler:
        policies = {job_type.name: job_type.retry for job_type in self._app.registry.job_types()}
        return Settler(
            worker_id=self._worker_id,
            group=self._group,
            buffer=core.buffer,
            store=core.store,
            producer=core.producer,
            names=self._names,
            tiers=self._settings.retry.tiers,
            policy_of=policies.get,
            clock=self._store_clock,
            rng=random.SystemRandom(),
            metrics=self._metrics,
            events=core.events,
            doubt=self._store_clock.doubt,
            held_recheck=self._settings.worker.held_recheck,
            in_order=self._in_order(),
            parking=core.parking,
            on_arrival=core.results.wake,
            longest_wait=longest_wait(self._settings),
            kept=kept_in_place(self._settings),
        )

    def _in_order(self) -> list[str]:
        return [job_type.name for job_type in self._app.registry.job_types() if job_type.order == "key"]

    def _executors(self, core: _Core) -> dict[str, Executor]:
        worker, alive = self._settings.worker, core.heartbeat.alive
        contexts = Contexts(
            worker_id=self._worker_id, effects=core.effects, alive=alive, clock=self._store_clock
        )
        on_runs = _freeing(core.buffer, core.results.put) if self._places() else core.results.put
        return {
            THREAD: ThreadExecutor(
                slots=worker.concurrency,
                most_ahead=worker.batch_max,
                clock=self._store_clock,
                contexts=contexts.of,
                on_runs=on_runs,
                on_room=core.buffer.wake,
            ),
            ASYNC: AsyncExecutor(
                slots=worker.async_concurrency,
                most_ahead=worker.batch_max,
                clock=self._store_clock,
                contexts=contexts.of,
                on_runs=on_runs,
                on_room=core.buffer.wake,
            ),
            **self._pools.executors(
                clock=self._store_clock, alive=alive, on_runs=on_runs, on_room=core.buffer.wake
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
