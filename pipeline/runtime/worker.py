"""A worker process: one member of the consumer group, and the threads that carry its jobs.

    poll thread (owns the consumer) -> buffer -> claim thread -> executors -> settle thread -> buffer -> commits

The poll thread never waits for handlers or for Postgres. A thread of ours that dies stops the worker: half a worker would
hold its partitions and do nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.clock import Clock
from pipeline.core.metrics import Metrics
from pipeline.core.ports import Effects, JobConsumer, JobProducer, JobStore, Parking
from pipeline.errors import StoreUnavailable
from pipeline.runtime.breakers import Breakers
from pipeline.runtime.buffer import Buffer
from pipeline.runtime.claimer import Claimer
from pipeline.runtime.dlq_depth import DepthGauge
from pipeline.runtime.events import EventSink
from pipeline.runtime.executors import Executor
from pipeline.runtime.handlers import SUSPECT
from pipeline.runtime.heartbeat import Heartbeat
from pipeline.runtime.intake import Intake
from pipeline.runtime.pruning import Pruner
from pipeline.runtime.retention import RetentionWatch
from pipeline.runtime.settle_loop import SettleLoop
from pipeline.runtime.watchdog import Watchdog

__all__ = ["Worker", "WorkerParts", "WorkerSettings"]

log = logging.getLogger("pipeline.worker")

OUTAGE_PAUSE = 0.5  # seconds between tries while Postgres or Kafka is away
IDLE_WAIT = 0.1
STUCK_SECONDS = 30.0  # without a poll: the poll thread is wedged
CLOSING_SECONDS = 5.0  # what the last settles and events get after the drain


class WorkerSettings(NamedTuple):
    """`batch_max` jobs a claim or settle at most, `drain_timeout` seconds for running jobs at a stop, topics to read."""

    worker_id: str
    queue: str
    topics: Sequence[str]
    batch_max: int
    drain_timeout: float


class WorkerParts(NamedTuple):
    """What a worker is made of; `pipeline.app` builds it."""

    consumer: JobConsumer
    producer: JobProducer
    store: JobStore
    effects: Effects
    buffer: Buffer
    intake: Intake
    claimer: Claimer
    settling: SettleLoop
    breakers: Breakers
    executors: Mapping[str, Executor]
    events: EventSink
    heartbeat: Heartbeat
    metrics: Metrics
    parking: Parking
    retention: RetentionWatch
    clock: Clock
    due_clock: Clock
    watchdog: Watchdog
    dlq_depth: DepthGauge
    pruner: Pruner


class Worker:
    """`run` blocks until the worker has stopped; `stop` may be called from any thread or signal handler."""

    def __init__(self, parts: WorkerParts, settings: WorkerSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._stopping = threading.Event()
        self._at_once = threading.Event()
        self._failure: BaseException | None = None
        self._trouble = ""
        self._polled_at = 0.0
        self._gauges_due = 0.0
        self._threads: list[threading.Thread] = []

    @property
    def worker_id(self) -> str:
        return self._settings.worker_id

    def drain(self) -> None:
        """Drain and leave; harmless when repeated."""
        self._stopping.set()

    def stop(self) -> None:
        """Drain and leave. Called again: at once, handing back what still runs."""
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    def run(self) -> int:
        """Work until stopped; give the exit code. Raises what the start may raise: servers away, topics missing."""
        parts = self._parts
        try:
            parts.heartbeat.beat()
            parts.retention.check()
            parts.consumer.subscribe(self._settings.topics, parts.retention)
        except BaseException:
            self._close()
            raise
        for executor in parts.executors.values():
            executor.start()
        self._spawn("heartbeat", parts.heartbeat.loop)
        claims = self._spawn("claim", self._claim_loop)
        self._spawn("settle", parts.settling.run)
        self._spawn("breakers", parts.breakers.loop)
        self._spawn("watchdog", parts.watchdog.loop)
        self._spawn("retention", parts.retention.loop)
        self._spawn("dlq depth", parts.dlq_depth.loop)
        self._spawn("prune", parts.pruner.loop)
        log.info("worker started", extra={"action": "started", "topics": list(self._settings.topics)})
        try:
            while not self._stopping.is_set():
                self._poll_once()
            self._drain(claims)
        except Exception as error:  # noqa: BLE001 - told, and the worker leaves as well as it can
            self._fail(error)
        still_running = self._shut_down()
        log.info("worker stopped", extra={"action": "stopped", "still_running": still_running})
        return 1 if self._failure or self._trouble else 0

    def problems(self) -> dict[str, str]:
        """What only a restart mends, by name; the text is empty where all is well."""
        stuck = self._parts.clock.monotonic() - self._polled_at > STUCK_SECONDS if self._polled_at else False
        return {
            "threads": f"stopping after {type(self._failure).__name__}" if self._failure else "",
            "executors": self._trouble,
            "consumer": f"not polled for {STUCK_SECONDS:g} s" if stuck else "",
        }

    def unready(self) -> dict[str, str]:
        """Why the worker takes no jobs at the moment, by name; the text is empty where all is well."""
        return {
            **self.problems(),
            "store": ""
            if self._parts.heartbeat.alive()
            else "the heartbeat is not renewed: nothing is claimed",
            "partitions": self._parts.watchdog.finding(),
            "stopping": "draining" if self._stopping.is_set() else "",
        }

    # --- threads

    def _spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001 - a dead side task stops the process
                self._fail(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _fail(self, error: BaseException) -> None:
        log.critical("worker fails: %s", error, exc_info=error, extra={"action": "failed"})
        self._failure = self._failure or error
        self._stopping.set()

    def _poll_once(self) -> None:
        parts = self._parts
        self._polled_at = parts.clock.monotonic()
        parts.intake.step()
        for executor in parts.executors.values():
            executor.check()
            if not self._trouble and (trouble := executor.trouble()):
                self._leave_for(trouble)
        if self._polled_at >= self._gauges_due:
            self._gauges_due = self._polled_at + 1.0
            self._set_gauges()
            if not self._stopping.is_set():
                parts.watchdog.step()

    def _leave_for(self, trouble: str) -> None:
        """Rather than sit half dead on its partitions the worker drains and leaves, for a supervisor to replace it."""
        log.critical("worker leaves: %s", trouble, extra={"action": "crippled"})
        self._trouble = trouble
        self._stopping.set()

    def _set_gauges(self) -> None:
        parts, queue = self._parts, self._settings.queue
        lags = {"main": 0, "retry": 0}
        for topic, lag in parts.consumer.lag().items():
            lags["retry" if parts.intake.is_retry(topic) else "main"] += lag
        for kind, lag in lags.items():
            parts.metrics.set_lag(queue, kind, lag)
        parts.metrics.set_buffer_fill(queue, parts.intake.fill())
        parts.metrics.set_delayed(queue, parts.buffer.load().waiting)
        parts.metrics.set_settles_held(queue, parts.settling.stuck())
        parts.metrics.set_running(queue, sum(executor.outstanding() for executor in parts.executors.values()))

    def _claim_loop(self) -> None:
        parts = self._parts
        while not self._stopping.is_set():
            ticket = parts.buffer.ticket()
            room = self._room()
            ready = parts.buffer.wait_work(
                list(room), now=parts.due_clock.time(), timeout=IDLE_WAIT, ticket=ticket
            )
            if ready and parts.heartbeat.alive():
                for lane, limit in room.items():
                    self._claim(lane, limit)
            elif ready:
                self._stopping.wait(IDLE_WAIT)

    def _room(self) -> dict[str, int]:
        """Lanes that want jobs. None do while many runs wait to be settled: what was claimed must end first."""
        parts, batch_max = self._parts, self._settings.batch_max
        running = sum(executor.outstanding() for executor in parts.executors.values())
        # Those whose next record Kafka refuses may take long: they must not keep the others from being claimed.
        if parts.buffer.in_flight() - running - parts.settling.stuck() > 4 * batch_max:
            return {}
        capacities = {lane: executor.capacity() for lane, executor in parts.executors.items()}
        return {lane: min(room, batch_max) for lane, room in capacities.items() if room}

    def _claim(self, lane: str, limit: int) -> None:
        parts = self._parts
        taken = parts.breakers.admit(parts.buffer.take(lane, limit, parts.due_clock.time()))
        if not taken:
            return
        try:
            granted = parts.claimer.claim(taken)
        except StoreUnavailable as error:
            parts.breakers.claimed(taken, [])
            log.warning("cannot claim: %s", error, extra={"action": "claim_failed"})
            self._stopping.wait(OUTAGE_PAUSE)
            return
        granted = parts.breakers.claimed(taken, granted)
        suspects = [delivery for delivery in granted if delivery.suspect]
        if suspects:
            parts.executors[SUSPECT].submit(suspects)
            granted = [delivery for delivery in granted if not delivery.suspect]
        if granted:
            parts.executors[lane].submit(granted)

    # --- the end

    def _drain(self, claims: threading.Thread) -> None:
        """Start nothing more, let what runs finish until the deadline; the group is kept and offsets are committed."""
        parts = self._parts
        log.info("draining", extra={"action": "draining", "in_flight": parts.buffer.in_flight()})
        parts.intake.drain()
        deadline = parts.clock.monotonic() + self._settings.drain_timeout
        while not self._at_once.is_set() and parts.clock.monotonic() < deadline:
            self._poll_once()
            if claims.is_alive():
                continue
            for executor in parts.executors.values():
                parts.buffer.hand_back(executor.drop_unstarted())
            if not parts.buffer.in_flight():
                return

    def _shut_down(self) -> int:
        """Settle what ended, commit, leave; give how many handlers are still running."""
        parts = self._parts
        still_running = sum(executor.abandon() for executor in parts.executors.values())
        parts.settling.close(CLOSING_SECONDS if self._failure is None else 0.0)
        if self._failure is None:
            parts.intake.commit()
        parts.buffer.hand_back_all()
        parts.heartbeat.stop()
        parts.watchdog.stop()
        parts.retention.stop()
        parts.dlq_depth.stop()
        parts.pruner.stop()
        parts.breakers.stop()
        if not still_running:
            self._leave()
        self._close()
        return still_running

    def _close(self) -> None:
        parts = self._parts
        parts.consumer.close()
        unwritten = parts.producer.flush(CLOSING_SECONDS)
        if unwritten:
            log.error("records not written in time: %d", unwritten, extra={"action": "unwritten"})
        parts.producer.close()
        parts.effects.close()
        parts.parking.close()
        parts.store.close()

    def _leave(self) -> None:
        """Let others claim what is handed back at once. While a handler still runs only the lease may free its job."""
        try:
            self._parts.store.leave(self.worker_id)
        except StoreUnavailable as error:
            log.warning(
                "cannot sign off, the lease will end by itself: %s", error, extra={"action": "leave_failed"}
            )
