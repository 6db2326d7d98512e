"""A world of workers around one log and one store, driven step by step, and what must hold in it at every step.

The code that claims, settles and commits is the worker's own (`Buffer`, `Intake`, `Claimer`, `Settler`); only its threads
are missing: each step is a call. The broker is the twin in memory, with the one habit of real Kafka that is dangerous: it
accepts a commit from any member of the group, owner or not, and lets the offset fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.adapters.memory_broker import MemoryBroker
from pipeline.core.claims import Claim, ClaimRequest, Settlement
from pipeline.core.clock import ManualClock
from pipeline.core.headers import parse_job
from pipeline.core.job import Record, Source, idempotent_job_id
from pipeline.core.metrics import NoMetrics
from pipeline.core.offsets import Partition
from pipeline.core.partitioner import partition_of
from pipeline.core.ports import Outgoing
from pipeline.core.state import JobState
from pipeline.core.story import JobStory
from pipeline.core.topics import TopicNames
from pipeline.runtime.handlers import Registry
from pipeline.runtime.onward import replay_record
from pipeline.runtime.publisher import Publisher
from tests.contract.protocol_twins import (
    EVENTS,
    Faults,
    Store,
    WatchedStore,
)
from tests.contract.protocol_worker import GROUP, MAIL, Parts, Worker
from tests.unit.runtime_parts import DLQ, MAIN, RETRY, JsonCodec, Mail

FINISHED = (JobState.COMPLETED, JobState.CANCELLED)


class Violation(AssertionError):
    """A promise was broken: loss, beside, stale, twice, offsets or stuck."""


class World:
    """Everything there is, and what happens to it."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        *,
        name: str,
        partitions: int = 2,
        in_order: bool = False,
        parts: Parts | None = None,
    ) -> None:
        """With `in_order` all jobs are of one key: one at a time, retried in place."""
        self.in_order = {MAIL.name} if in_order else set()
        self.clock = clock
        self.name = name
        self.parts = parts or Parts()
        self._partitions = partitions
        self.broker = MemoryBroker(clock)
        self.broker.create_topic(MAIN, partitions)
        for topic in (RETRY, DLQ, EVENTS):
            self.broker.create_topic(topic)
        self.faults: Faults = {}
        self.truth = Truth(self)
        self.rows = store
        self.store = WatchedStore(self.parts.store(store), self.faults, self.truth)
        self.registry = Registry()
        self.registry.declare(MAIL)
        self.registry.handle(MAIL, lambda _payload: None)
        self.publisher = self._publisher()
        self.job_ids: dict[str, str] = {}  # by idempotency key
        self.workers: list[Worker] = []
        self.dead: list[Worker] = []  # crashed ones, whose lease or session may go on
        self._started = 0
        self._traces: dict[Source, Trace] = {}

    def _publisher(self) -> Publisher:
        return Publisher(
            registry=self.registry,
            producer=self.broker.producer(),
            codec=JsonCodec(),
            names=TopicNames(),
            queues=["default"],
            source="world",
            clock=self.clock,
            metrics=NoMetrics(),
            timeout=1,
        )

    # --- what happens

    def start_worker(self) -> None:
        self._started += 1
        self.workers.append(Worker(self, f"{self.name}-w{self._started}"))

    def publish(self, key: str) -> None:
        """Publish a job; with a key that was used before it is published twice."""
        tenant = "tenant" if self.in_order else f"tenant-{key}"
        self.job_ids[key] = idempotent_job_id(tenant=tenant, job_type=MAIL.name, key=f"{self.name}-{key}")
        published = self.publisher.publish(
            MAIL, Mail(to=key), tenant=tenant, idempotency_key=f"{self.name}-{key}"
        )
        assert published.job_id == self.job_ids[key]

    def copy(self, record: Record) -> None:
        """The same job once more, in another partition if there is one."""
        others = {number for number in range(self._partitions) if number != record.partition} or {
            record.partition
        }
        keys = (b"%d" % number for number in range(100))
        key = next(key for key in keys if partition_of(key, self._partitions) in others)
        self._send(Outgoing(MAIN, key, record.value, record.headers))

    def replay(self, letter: Record) -> None:
        self._send(replay_record(letter, parse_job(letter, queue="default").job, topic=MAIN))

    def _send(self, record: Outgoing) -> None:
        self.broker.producer().send(record)

    def crash(self, worker: Worker, *, session: bool, lease: bool) -> None:
        """It is gone with all that it held in memory; its session and its lease end now, or later."""
        self.workers.remove(worker)
        self.dead.append(worker)
        if session:
            worker.lose_session()
        if lease:
            worker.lapse()
        self.start_worker()

    def stop(self, worker: Worker) -> None:
        """It drains and leaves; what it did not finish is handed back."""
        worker.leave()
        self.workers.remove(worker)
        self.start_worker()

    @contextmanager
    def failing(self, call: str, when: str) -> Iterator[None]:
        """Let the next call of that name fail, before or after it took effect, once."""
        self.faults.update({call: when} if call else {})
        yield
        self.faults.clear()

    # --- what must hold

    def check(self) -> None:
        committed = self.broker.committed(GROUP)
        self.truth.see_commits(committed)
        letters = self.traces(DLQ)
        carriers = [
            trace
            for topic in (MAIN, RETRY)
            for trace in self.traces(topic)
            if trace.offset >= committed.get(trace.partition, 0)
        ]
        for key, job_id in self.job_ids.items():
            row = self.rows.job(job_id)
            if not _is_safe(row, job_id, carriers=carriers, letters=letters):
                self.truth.violated(f"loss: job {key} is {row and row.state}, and no record can carry it on")

    def traces(self, topic: str) -> list[Trace]:
        """What the records of a topic are, each parsed once."""
        for record in self.broker.records(topic):
            if record.source not in self._traces:
                job = parse_job(record, queue="default").job
                partition = Partition(record.topic, record.partition)
                self._traces[record.source] = Trace(partition, record.offset, job.job_id, job.hop)
        return [trace for source, trace in self._traces.items() if source.topic == topic]

    # --- the end

    def heal(self, *, rounds: int = 60) -> None:
        """End every fault and drive on until all is quiet."""
        self.faults.clear()
        for worker in self.dead:
            worker.lapse()
            worker.lose_session()
        for _ in range(rounds):
            self.clock.advance(11.0)
            for worker in self.workers:
                worker.renew()
                worker.work_off()
            self.check()
            if self._is_quiet():
                self._check_trail()
                return
        self.truth.violated(f"stuck: {self._standing()}")

    def _is_quiet(self) -> bool:
        committed = self.broker.committed(GROUP)
        ends = {each.partition: each.offset + 1 for topic in (MAIN, RETRY) for each in self.traces(topic)}
        all_committed = all(committed.get(partition, 0) >= end for partition, end in ends.items())
        rows = [self.rows.job(job_id) for job_id in self.job_ids.values()]
        ended = (*FINISHED, JobState.DEAD)
        idle = not any(worker.holding() or worker.buffer.load() != (0, 0, 0, 0) for worker in self.workers)
        return all_committed and idle and all(row is not None and row.state in ended for row in rows)

    def _check_trail(self) -> None:
        """The events may repeat themselves, but the last move of each job is among them."""
        events = self.broker.records(EVENTS)
        for key, job_id in self.job_ids.items():
            row = self.rows.job(job_id)
            told = {
                word
                for event in events
                if event.key == job_id.encode()
                for word in (event.value or b"").split()
            }
            if row is None or row.state.value.encode() not in told:
                self.truth.violated(f"trail: job {key} is {row and row.state}, its events say {told}")

    def _standing(self) -> str:
        rows = {key: self.rows.job(job_id) for key, job_id in self.job_ids.items()}
        told = {
            key: row and (row.state.value, row.hop, row.token, row.worker_id) for key, row in rows.items()
        }
        return f"{told}; committed {self.broker.committed(GROUP)}; {[w.buffer.load() for w in self.workers]}"


class Trace(NamedTuple):
    """What a record is to the checks."""

    partition: Partition
    offset: int
    job_id: str
    hop: int


def _is_safe(row: JobStory | None, job_id: str, *, carriers: list[Trace], letters: list[Trace]) -> bool:
    """A job is finished, or dead with its letter, or a record that is not committed can still carry it on."""
    least = row.hop if row else 0
    if row and row.state in FINISHED:
        return True
    if row and row.state is JobState.DEAD and any(x.job_id == job_id and x.hop >= least for x in letters):
        return True
    return any(each.job_id == job_id and each.hop >= least for each in carriers)


@dataclass
class Truth:
    """What an observer of everything knows, and when it must cry out."""

    world: World
    tokens: dict[str, int] = field(default_factory=dict)
    holders: dict[str, Worker] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    broken: bool = False

    def violated(self, what: str) -> None:
        self.broken = True
        raise Violation(what)

    def see_claim(self, worker_id: str, request: ClaimRequest, claim: Claim) -> None:
        job_id = request.job_id
        if job_id in self.completed:
            self.violated("twice: a completed job is claimed again")
        if claim.token <= self.tokens.get(job_id, 0):
            self.violated(f"stale: token {claim.token} after {self.tokens[job_id]}")
        holder = self.holders.get(job_id)
        if holder and holder in self.world.workers and holder.alive_in_store:
            held = [
                each
                for each in holder.holding()
                if each.job.job_id == job_id and each.token == self.tokens[job_id]
            ]
            if held:
                self.violated(f"beside: {worker_id} is granted what {holder.name} holds")
        self.tokens[job_id] = claim.token
        self.holders[job_id] = next(w for w in self.world.workers if w.name == worker_id)

    def see_settlement(self, settlement: Settlement) -> None:
        job_id, token = settlement.job_id, settlement.token
        if token != self.tokens[job_id]:
            self.violated(f"stale: token {token} settles after {self.tokens[job_id]} was given")
        finished = self.completed.get(job_id)
        if finished is not None and (finished != token or settlement.state not in FINISHED):
            self.violated("twice: a finished job is settled again")
        if settlement.state in FINISHED:
            self.completed[job_id] = token
        self.holders.pop(job_id, None)

    def see_commits(self, committed: Mapping[Partition, int]) -> None:
        for partition, offset in committed.items():
            if offset < self.committed.get(partition, 0):
                self.violated(
                    f"offsets: that of {partition} falls from {self.committed[partition]} to {offset}"
                )
            self.committed[partition] = offset
