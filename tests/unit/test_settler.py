"""Settling: next record acknowledged, then the state moved, then the offset done; and what remains when a step fails."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence

import pytest

from pipeline.adapters.memory_broker import MemoryBroker
from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.core.backoff import Backoff
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Cancelled, Failed, Failure, Lost, Outcome, Rejected, Snoozed, Succeeded
from pipeline.core.ports import Delivered, Outgoing, WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.topics import TopicNames
from pipeline.errors import PublishFailed, StoreUnavailable
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.settle_loop import Results, SettleLoop
from pipeline.runtime.settler import Settler, Unsettled
from tests.unit.runtime_parts import (
    DLQ,
    MAIN,
    NOW,
    RETRY,
    Counts,
    Journal,
    NoEvents,
    NotingProducer,
    ShakyStore,
    clock_at,
    delivery_of,
    new_job,
    record_of,
)

FAILURE = Failure("ValueError", "no")
FAILED, DIES = Failed(FAILURE), Rejected(FAILURE)
P0 = Partition(MAIN, 0)


class NotingBuffer(Buffer):
    """Notes what becomes of deliveries."""

    journal: Journal

    def done(self, deliveries: Iterable[Delivery]) -> None:
        deliveries = list(deliveries)
        if deliveries:
            self.journal.add("done", [each.record.offset for each in deliveries])
        super().done(deliveries)

    def hold(self, deliveries: Iterable[Delivery], until: float) -> None:
        deliveries = list(deliveries)
        self.journal.add("hold", [each.record.offset for each in deliveries])
        super().hold(deliveries, until)


class Bench:
    """A settler over twins that write what they do into one journal."""

    def __init__(self) -> None:
        self.clock = clock_at()
        self.journal = Journal()
        self.rows = MemoryJobStore(self.clock)
        self.store = ShakyStore(self.rows, Journal())
        for worker in ("w", "other"):
            self.rows.heartbeat(WorkerInfo(worker, "host", 1, ("default",), 600.0))
        self.broker = MemoryBroker(self.clock)
        for topic in (RETRY, DLQ):
            self.broker.create_topic(topic)
        self.buffer = NotingBuffer(
            BufferSettings(lanes=("thread",), lane_of=lambda _: "thread", is_retry=lambda _: False)
        )
        self.buffer.journal = self.store.journal = self.journal
        self.buffer.assign([P0])
        self.counts = Counts()
        self.events = NoEvents(self.journal)
        self.producer = NotingProducer(self.broker.producer(), self.journal)
        self.settler = self._settler()
        self._offset = 0

    def _settler(self, in_order: Collection[str] = (), kept: float = math.inf) -> Settler:
        return Settler(
            worker_id="w",
            group="workers",
            buffer=self.buffer,
            store=self.store,
            producer=self.producer,
            names=TopicNames(),
            tiers=(10.0, 60.0),
            policy_of=lambda _: Backoff(max_attempts=3, base=10, jitter=0),
            clock=self.clock,
            rng=random.Random(1),
            metrics=self.counts,
            events=self.events,
            held_recheck=2.0,
            in_order=in_order,
            kept=kept,
        )

    def order(self, *, kept: float) -> None:
        """From now on jobs run in order, in a topic that keeps its records for so long."""
        self.settler = self._settler(["email.send"], kept)

    def runs(self, *outcomes: Outcome, attempt: int = 1) -> list[Run]:
        """Runs of jobs that were claimed here and ended so."""
        deliveries = []
        for _ in outcomes:
            deliveries.append(delivery_of(record_of(new_job(attempt=attempt), offset=self._offset)))
            self._offset += 1
        self.buffer.receive(deliveries, NOW)
        taken = self.buffer.take("thread", 100, NOW)
        claims = self.rows.claim("w", [each.claim_request() for each in taken])
        for delivery, claim in zip(taken, claims, strict=True):
            delivery.token = claim.token
        return [Run(each, outcome, NOW - 1, NOW) for each, outcome in zip(taken, outcomes, strict=True)]

    def decided(self, *outcomes: Outcome, attempt: int = 1) -> list[Unsettled]:
        return [self.settler.decide(run) for run in self.runs(*outcomes, attempt=attempt)]

    def state(self, item: Unsettled) -> JobState:
        row = self.rows.job(item.run.delivery.job.job_id)
        assert row is not None
        return row.state

    def records(self, topic: str) -> list[Record]:
        return self.broker.records(topic)

    def refuse(self, *topics: str) -> None:
        self.broker.refuse_writes(lambda record: PublishFailed("not now") if record.topic in topics else None)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(("outcome", "topic"), [(FAILED, RETRY), (Snoozed(5, None), RETRY), (DIES, DLQ)])
def test_the_next_record_is_written_before_the_state_is_moved_before_the_offset_is_done(
    bench: Bench, outcome: Outcome, topic: str
) -> None:
    assert bench.settler.settle(bench.decided(outcome)) == []
    assert [name for name in bench.journal.names() if name != "flush"] == ["send", "settle", "events", "done"]
    assert bench.journal.details("send") == [topic]
    assert bench.buffer.take_commits() == {P0: 1}


@pytest.mark.parametrize(("outcome", "state"), [(Succeeded(), "completed"), (Cancelled("x"), "cancelled")])
def test_a_run_that_leads_nowhere_writes_no_record(bench: Bench, outcome: Outcome, state: str) -> None:
    (item,) = bench.decided(outcome)
    assert bench.settler.settle([item]) == []
    assert bench.journal.names() == ["settle", "events", "done"]
    assert bench.state(item) == state


def test_what_is_written_onward_is_the_decision(bench: Bench) -> None:
    retry, dead = bench.decided(FAILED, DIES)
    bench.settler.settle([retry, dead])
    (later,), (letter,) = bench.records(RETRY), bench.records(DLQ)
    job = parse_job(later, queue="default").job
    assert (job.job_id, job.attempt, job.hop, job.not_before) == (
        retry.run.delivery.job.job_id,
        2,
        1,
        NOW + 10,
    )
    assert parse_job(letter, queue="default").job == dead.run.delivery.job._replace(
        enqueued_at=parse_job(letter, queue="default").job.enqueued_at
    )
    row = bench.rows.job(job.job_id)
    assert row is not None
    assert (row.state, row.hop, row.due_at) == (JobState.RETRYING, 1, NOW + 10)


def test_a_job_that_fails_for_the_last_time_is_dead(bench: Bench) -> None:
    (item,) = bench.decided(FAILED, attempt=3)
    bench.settler.settle([item])
    assert bench.state(item) is JobState.DEAD
    assert (len(bench.records(DLQ)), len(bench.records(RETRY))) == (1, 0)


def test_a_decision_is_made_once_however_often_settling_is_tried(bench: Bench) -> None:
    (item,) = bench.decided(FAILED)
    decision, record = item.decision, item.next_record
    bench.refuse(RETRY)
    bench.settler.settle([item])
    bench.clock.advance(100)
    bench.settler.settle([item])
    assert item.decision is decision
    assert item.next_record is record


class TestWhenAStepFails:
    def test_a_record_that_is_refused_holds_its_own_job_and_no_other(self, bench: Bench) -> None:
        dead, retry, fine = bench.decided(DIES, FAILED, Succeeded())
        bench.refuse(DLQ)
        assert bench.settler.settle([dead, retry, fine]) == [dead]
        assert [bench.state(item) for item in (dead, retry, fine)] == ["running", "retrying", "completed"]
        assert bench.buffer.take_commits() == {}, "the offset of the first is open"
        assert bench.journal.details("done") == [[1, 2]]
        bench.refuse()
        assert bench.settler.settle([dead]) == []
        assert bench.state(dead) is JobState.DEAD
        assert bench.buffer.take_commits() == {P0: 3}

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_an_outage_of_the_store_leaves_the_batch_whole_and_writes_no_record_again(
        self, bench: Bench, when: str
    ) -> None:
        batch = bench.decided(FAILED, Succeeded(), DIES)
        bench.store.failing["settle"] = when
        with pytest.raises(StoreUnavailable):
            bench.settler.settle(batch)
        assert bench.buffer.in_flight() == 3
        assert bench.buffer.take_commits() == {}
        assert bench.journal.details("done") == []
        assert bench.settler.settle(batch) == []
        assert (len(bench.records(RETRY)), len(bench.records(DLQ))) == (1, 1)
        assert [bench.state(item) for item in batch] == ["retrying", "completed", "dead"]
        assert bench.buffer.take_commits() == {P0: 3}

    @pytest.mark.parametrize("outcome", [FAILED, DIES, Succeeded()])
    @pytest.mark.parametrize("crash", ["send", "settle", "events", "done"])
    def test_a_crash_before_any_step_leaves_the_job_to_be_redelivered(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, crash: str
    ) -> None:
        """Row 2, 3 and 10: the record is open, and the store says whether the job has to run once more."""
        steps: dict[str, tuple[object, str]] = {
            "send": (bench.producer, "send"),
            "settle": (bench.rows, "settle"),
            "events": (bench.events, "settled"),
            "done": (bench.buffer, "done"),
        }
        target, method = steps[crash]
        (item,) = bench.decided(outcome)

        def die(*_: object) -> None:
            raise SystemError("killed")

        monkeypatch.setattr(target, method, die)
        if crash == "send" and isinstance(outcome, Succeeded):
            return
        with pytest.raises(SystemError):
            bench.settler.settle([item])
        monkeypatch.undo()
        assert bench.buffer.take_commits() == {}, "the record comes again"
        moved = crash in ("events", "done")
        assert (bench.state(item) is JobState.RUNNING) == (not moved)
        written = len(bench.records(RETRY)) + len(bench.records(DLQ))
        assert written == (not isinstance(outcome, Succeeded) and crash != "send")
        bench.rows.heartbeat(WorkerInfo("w", "host", 1, (), 0.0))
        (again,) = bench.rows.claim("other", [item.run.delivery.claim_request()])
        assert again.verdict == ("duplicate" if moved else "claimed")


class TestARefusedSettle:
    def taken_over(self, bench: Bench, outcome: Outcome) -> Unsettled:
        (item,) = bench.decided(outcome)
        bench.rows.heartbeat(WorkerInfo("w", "host", 1, (), 0.0))
        request = item.run.delivery.claim_request()._replace(offset=99)
        assert bench.rows.claim("other", [request])[0].verdict == "claimed"
        return item

    @pytest.mark.parametrize("outcome", [Succeeded(), FAILED, DIES])
    def test_it_commits_nothing_and_the_record_is_judged_again(self, bench: Bench, outcome: Outcome) -> None:
        item = self.taken_over(bench, outcome)
        assert bench.settler.settle([item]) == []
        assert bench.state(item) is JobState.RUNNING
        assert bench.buffer.take_commits() == {}
        assert bench.journal.details("hold") == [[0]]
        assert bench.counts.seen == {"fenced": 1}
        assert bench.events.moves == []
        assert bench.buffer.take("thread", 10, NOW + 1.9) == []
        assert bench.buffer.take("thread", 10, NOW + 2) == [item.run.delivery]
        assert item.run.delivery.token == 0

    def test_others_of_the_batch_are_settled(self, bench: Bench) -> None:
        refused = self.taken_over(bench, Succeeded())
        bench.rows.heartbeat(WorkerInfo("w", "host", 1, (), 600.0))
        (fine,) = bench.decided(Succeeded())
        assert bench.settler.settle([refused, fine]) == []
        assert bench.state(fine) is JobState.COMPLETED
        assert bench.counts.seen["fenced"] == 1
        assert bench.counts.seen["completed"] == 1

    def test_a_run_that_lost_its_claim_writes_nothing_at_all(self, bench: Bench) -> None:
        (item,) = bench.decided(Lost())
        assert bench.settler.settle([item]) == []
        assert bench.journal.names() == ["hold"]
        assert bench.state(item) is JobState.RUNNING
        assert bench.counts.seen == {"fenced": 1}


def test_each_end_is_counted_as_what_it_is(bench: Bench) -> None:
    outcomes: list[Outcome] = [Succeeded(), Succeeded(), FAILED, DIES, Snoozed(5, None), Cancelled("")]
    bench.settler.settle(bench.decided(*outcomes))
    assert bench.counts.seen == {
        "completed": 2,
        "failed": 2,
        "retried": 1,
        "dead:rejected": 1,
        "snoozed": 1,
        "cancelled": 1,
        "observe_processing:completed": 2,
        "observe_processing:retrying": 2,
        "observe_processing:dead": 1,
        "observe_processing:cancelled": 1,
    }


def test_events_tell_of_each_move_that_was_stored(bench: Bench) -> None:
    bench.settler.settle(bench.decided(FAILED, Succeeded()))
    assert [(move.previous, move.state) for move in bench.events.moves] == [
        ("running", "failed"),
        ("failed", "retrying"),
        ("running", "completed"),
    ]
    assert {move.duration for move in bench.events.moves} == {1.0}


class LateProducer(NotingProducer):
    """Acknowledges when it is told to."""

    def __init__(self, inner: NotingProducer, journal: Journal) -> None:
        super().__init__(inner, journal)
        self.late: list[tuple[Outgoing, Callable[[Delivered], None] | None]] = []

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        self.late.append((record, on_delivery))

    def acknowledge(self) -> None:
        for record, on_delivery in self.late:
            super().send(record, on_delivery)
        self.late.clear()


@pytest.fixture
def late(bench: Bench) -> LateProducer:
    bench.producer = producer = LateProducer(bench.producer, bench.journal)
    bench.settler = bench._settler()
    return producer


def test_a_state_is_not_moved_while_the_next_record_is_on_its_way(bench: Bench, late: LateProducer) -> None:
    retry, fine = bench.decided(FAILED, Succeeded())
    assert bench.settler.settle([retry, fine]) == []
    assert [bench.state(item) for item in (retry, fine)] == ["running", "completed"]
    late.acknowledge()
    assert bench.settler.next_records.arrived() == [retry]
    bench.settler.settle([retry])
    assert bench.state(retry) is JobState.RETRYING


def settled_by_loop(bench: Bench, runs: Sequence[Run], *, acknowledge: Callable[[], None]) -> None:
    results = Results()
    loop = SettleLoop(bench.settler, results, batch_max=10, clock=bench.clock)
    pending = loop._settle(loop._decided(runs))
    assert [item.run.outcome for item in pending] == [Succeeded()], "what is on its way comes back by itself"
    acknowledge()
    assert loop._settle([*pending, *loop._arrived()]) == []


def test_an_outage_while_a_record_is_on_its_way_does_not_write_it_twice(
    bench: Bench, late: LateProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.runtime.settle_loop.OUTAGE_PAUSE", 0.0)
    bench.store.failing["settle"] = "before"
    settled_by_loop(bench, bench.runs(FAILED, Succeeded()), acknowledge=late.acknowledge)
    assert len(bench.records(RETRY)) == 1
    assert bench.buffer.take_commits() == {P0: 2}
    assert bench.counts.seen["retried"] == 1


def test_a_job_in_order_that_would_outlast_its_record_goes_to_the_dead_letters_and_frees_its_offset(
    bench: Bench,
) -> None:
    bench.order(kept=1000)
    (item,) = bench.decided(Snoozed(None, NOW + 1001))
    assert bench.settler.settle([item]) == []
    assert bench.state(item) is JobState.DEAD
    (letter,) = bench.records(DLQ)
    assert dict(letter.headers)["pipeline-reason"] == b"waits_too_long"
    assert bench.buffer.take_commits() == {P0: 1}
