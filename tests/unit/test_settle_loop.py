"""The settle thread: what waits for something waits by itself, and everything is settled in the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import pytest

from pipeline.adapters.memory_broker import MemoryBroker
from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.core.clock import SystemClock
from pipeline.core.metrics import NoMetrics
from pipeline.core.outcome import Failed, Failure, Outcome, Rejected, Succeeded
from pipeline.core.ports import Outgoing, WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.topics import TopicNames
from pipeline.errors import PipelineError, PublishFailed
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.settle_loop import Results, SettleLoop
from pipeline.runtime.settler import Settler
from tests.unit.runtime_parts import (
    DLQ,
    MAIL,
    RETRY,
    NoEvents,
    ShakyStore,
    delivery_of,
    eventually,
    new_buffer,
    new_job,
    record_of,
)

FAILURE = Failure("ValueError", "no")


class Bench:
    """A settle loop on its thread, over a store and a broker in memory."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.store = ShakyStore(MemoryJobStore(clock))
        self.store.heartbeat(WorkerInfo("w", "host", 1, ("default",), 600.0))
        self.broker = MemoryBroker(clock)
        for topic in (RETRY, DLQ):
            self.broker.create_topic(topic, 1)
        self.buffer = new_buffer()
        self.results = Results()
        self.decided = 0
        settler = Settler(
            worker_id="w",
            group="workers",
            buffer=self.buffer,
            store=self.store,
            producer=self.broker.producer(),
            names=TopicNames(),
            tiers=(10.0,),
            policy_of=lambda _: MAIL.retry,
            clock=clock,
            rng=random.Random(1),
            metrics=NoMetrics(),
            events=NoEvents(),
            held_recheck=1.0,
            on_arrival=self.results.wake,
        )
        self.loop = SettleLoop(settler, self.results, batch_max=10, clock=clock, on_runs=self._note)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()
        self._offset = 0

    def _note(self, items: Sequence[object]) -> None:
        self.decided += len(items)

    def end(self, *outcomes: Outcome, job_type: str = "email.send") -> list[Delivery]:
        """Runs that were claimed here and ended so."""
        deliveries = []
        for _ in outcomes:
            self._offset += 1
            deliveries.append(delivery_of(record_of(new_job(job_type=job_type), offset=self._offset)))
        self.buffer.receive(deliveries, 2e9)
        taken = self.buffer.take("thread", len(deliveries), 2e9)
        claims = self.store.claim("w", [delivery.claim_request() for delivery in taken])
        now = SystemClock().time()
        for delivery, claim in zip(taken, claims, strict=True):
            delivery.token = claim.token
        self.results.put([Run(d, outcome, now, now) for d, outcome in zip(taken, outcomes, strict=True)])
        return taken

    def states(self, deliveries: Sequence[Delivery]) -> set[JobState]:
        rows = [self.store._inner.job(each.job.job_id) for each in deliveries]  # type: ignore[attr-defined]
        return {row.state for row in rows}

    def refuse(self, *topics: str) -> None:
        def judge(record: Outgoing) -> PipelineError | None:
            return PublishFailed("not now") if record.topic in topics else None

        self.broker.refuse_writes(judge)


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.refuse()
    found.loop.close(10)
    found.thread.join(10)
    assert not found.thread.is_alive()


def test_runs_are_decided_once_and_settled_with_their_next_records_written(bench: Bench) -> None:
    good = bench.end(*[Succeeded()] * 25)
    failed = bench.end(*[Failed(FAILURE)] * 3)
    dead = bench.end(*[Rejected(FAILURE)] * 4)
    eventually(lambda: not bench.buffer.in_flight())
    assert bench.states(good) == {JobState.COMPLETED}
    assert bench.states(failed) == {JobState.RETRYING}
    assert bench.states(dead) == {JobState.DEAD}
    assert (len(bench.broker.records(RETRY)), len(bench.broker.records(DLQ))) == (3, 4)
    assert bench.decided == 32


def test_a_topic_that_takes_nothing_holds_up_nobody_else(bench: Bench) -> None:
    bench.refuse(DLQ)
    dead = bench.end(*[Rejected(FAILURE)] * 30)
    eventually(lambda: bench.loop.stuck() == 30)
    others = bench.end(*[Succeeded()] * 40) + bench.end(*[Failed(FAILURE)] * 10)
    eventually(lambda: bench.buffer.in_flight() == 30)
    assert JobState.RUNNING not in bench.states(others)
    assert bench.states(dead) == {JobState.RUNNING}
    assert bench.buffer.take_commits() == {}  # the first of them bars the partition
    assert (bench.loop.stuck("email.send"), bench.loop.stuck("other")) == (30, 0)
    bench.refuse()
    eventually(lambda: not bench.buffer.in_flight() and not bench.loop.stuck())
    assert bench.states(dead) == {JobState.DEAD}
    assert len(bench.broker.records(DLQ)) == 30
    assert bench.loop.stuck() == bench.loop.stuck("email.send") == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_of_the_store_is_waited_out_and_nothing_is_written_twice(bench: Bench, when: str) -> None:
    bench.store.failing["settle"] = when
    runs = bench.end(*[Rejected(FAILURE)] * 5)
    eventually(lambda: not bench.buffer.in_flight())
    assert bench.states(runs) == {JobState.DEAD}
    assert len(bench.broker.records(DLQ)) == 5


def test_closing_waits_for_what_can_be_settled_and_no_longer(bench: Bench) -> None:
    bench.refuse(DLQ)
    bench.end(*[Rejected(FAILURE)] * 2)
    eventually(lambda: bench.loop.stuck() == 2)
    good = bench.end(*[Succeeded()] * 20)
    bench.loop.close(0.2)
    eventually(lambda: bench.states(good) == {JobState.COMPLETED})
    assert bench.thread.is_alive()
