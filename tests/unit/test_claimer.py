"""Claiming: what is granted runs, what is a duplicate is done, what is held waits, and an outage loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.core import headers as h
from pipeline.core.claims import Settlement, Verdict
from pipeline.core.job import Record
from pipeline.core.job_type import JobType
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Failed, Rejected, Snoozed
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState, Trigger
from pipeline.errors import BrokerUnavailable, RegistryUnavailable, StoreUnavailable
from pipeline.runtime.claimer import Claimer
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.handlers import Registry
from tests.unit.runtime_parts import (
    MAIL,
    MAIN,
    NOW,
    Counts,
    JsonCodec,
    Mail,
    NoEvents,
    ShakyStore,
    clock_at,
    delivery_of,
    new_buffer,
    new_job,
    record_of,
)

P0 = Partition(MAIN, 0)
OTHER: JobType[Mail] = JobType(name="report.build", model=Mail)


class AwayCodec(JsonCodec):
    """Cannot look up a schema now."""

    error: type[Exception] = BrokerUnavailable

    def decode(self, job_type: str, data: bytes, schema_id: bytes = b"") -> Any:
        raise self.error(f"{job_type}: {len(data)} bytes with schema {schema_id!r}: away")


class Bench:
    def __init__(self, codec: JsonCodec | None = None, counts: Counts | None = None) -> None:
        self.clock = clock_at()
        self.rows = MemoryJobStore(self.clock)
        self.store = ShakyStore(self.rows)
        for worker in ("w", "other"):
            self.beat(worker)
        self.buffer = new_buffer(P0)
        self.registry = Registry()
        self.registry.declare(MAIL)
        self.registry.handle(MAIL, lambda _payload: None)
        self.counts = counts or Counts()
        self.events = NoEvents()
        self.ended: list[Run] = []
        self.claimer = Claimer(
            worker_id="w",
            buffer=self.buffer,
            store=self.store,
            codec=codec or JsonCodec(),
            registry=self.registry,
            clock=self.clock,
            metrics=self.counts,
            events=self.events,
            held_recheck=2.0,
            on_runs=self.ended.extend,
        )
        self._offset = 0

    def beat(self, worker: str, lease: float = 600.0) -> None:
        self.rows.heartbeat(WorkerInfo(worker, "host", 1, ("default",), lease))

    def receive(self, *records: Record) -> list[Delivery]:
        deliveries = [delivery_of(record) for record in records]
        self.buffer.receive(deliveries, self.clock.time())
        return self.buffer.take("thread", 100, self.clock.time())

    def record(self, **values: Any) -> Record:
        value = values.pop("value", b'{"to": "ann"}')
        self._offset += 1
        return record_of(new_job(**values), offset=self._offset, value=value)

    def claim(self, *records: Record) -> list[Delivery]:
        return self.claimer.claim(self.receive(*records))

    def claimed_by_other(self, record: Record) -> None:
        request = delivery_of(record).claim_request()
        assert self.rows.claim("other", [request])[0].verdict is Verdict.CLAIMED

    def settled(self, record: Record, state: JobState) -> None:
        self.claimed_by_other(record)
        job = delivery_of(record).job
        hop = job.hop + (state is JobState.RETRYING)
        (ended,) = self.rows.settle("other", [Settlement(job.job_id, 1, state, 1, hop, NOW, NOW)])
        assert ended.accepted


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_granted_is_given_with_its_token_handler_and_payload(bench: Bench) -> None:
    (mine,) = bench.claim(bench.record())
    assert mine.token == 1
    assert mine.payload == Mail(to="ann")
    assert mine.handler is bench.registry.handler("email.send")
    assert bench.buffer.in_flight() == 1


def test_one_call_asks_for_all(bench: Bench) -> None:
    granted = bench.claim(*(bench.record() for _ in range(50)))
    assert len(granted) == 50
    assert [len(requests) for requests in bench.store.journal.details("claim")] == [50]


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD, JobState.RETRYING])
def test_a_record_of_a_settled_job_is_done_and_counted(bench: Bench, state: JobState) -> None:
    record = bench.record()
    bench.settled(record, state)
    assert bench.claim(record) == []
    assert bench.buffer.take_commits() == {P0: 2}
    assert bench.counts.seen == {"duplicates": 1}
    assert bench.buffer.load() == (0, 0, 0, 0)


def test_a_record_whose_job_runs_elsewhere_is_looked_at_again_later(bench: Bench) -> None:
    record = bench.record()
    bench.claimed_by_other(record)
    assert bench.claim(record) == []
    assert bench.buffer.take_commits() == {}
    assert bench.counts.seen == {"held": 1}
    assert bench.buffer.take("thread", 10, NOW + 1.9) == []
    (again,) = bench.buffer.take("thread", 10, NOW + 2)
    bench.beat("other", lease=0.0)
    assert bench.claimer.claim([again]) == [again]
    assert again.token == 2


def test_a_record_that_waits_for_its_time_in_the_store_is_held_until_then(bench: Bench) -> None:
    """A retry in place: the record knows of no due time, the row does."""
    record = bench.record()
    bench.claimed_by_other(record)
    job = delivery_of(record).job
    retry = Settlement(job.job_id, 1, JobState.RETRYING, 1, 0, NOW, NOW, NOW + 30, next_attempt=2)
    bench.rows.settle("other", [retry])
    assert bench.claim(record) == []
    assert bench.buffer.take("thread", 10, NOW + 29.9) == []
    (due,) = bench.buffer.take("thread", 10, NOW + 30)
    bench.clock.advance(30)
    assert bench.claimer.claim([due]) == [due]
    assert due.job.attempt == 2, "the row knows better than the record"


def test_a_job_that_is_taken_over_is_told_of(bench: Bench) -> None:
    record = bench.record()
    bench.claimed_by_other(record)
    bench.beat("other", lease=0.0)
    bench.claim(record)
    assert bench.counts.seen["rescued"] == 1
    assert [(move.previous, move.trigger, move.reason) for move in bench.events.moves] == [
        (JobState.RUNNING, Trigger.LEASE_EXPIRED, "other"),
        (JobState.QUEUED, Trigger.WORKER_CLAIMED, ""),
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_puts_the_batch_back_in_front_and_burns_no_attempt(bench: Bench, when: str) -> None:
    """Row 22: no handler runs without its check, and nothing is lost whether the claims took effect or not."""
    taken = bench.receive(bench.record(), bench.record())
    bench.store.failing["claim"] = when
    with pytest.raises(StoreUnavailable):
        bench.claimer.claim(taken)
    assert (bench.buffer.in_flight(), bench.ended, bench.events.moves) == (0, [], [])
    assert bench.buffer.take_commits() == {}
    again = bench.buffer.take("thread", 10, NOW)
    assert again == taken
    granted = bench.claimer.claim(again)
    assert granted == taken
    assert {each.token for each in granted} == {1 if when == "before" else 2}
    assert {each.job.attempt for each in granted} == {1}
    assert not any(each.doubtful for each in granted)


def test_a_bug_in_the_store_puts_the_batch_back_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = bench.receive(bench.record())
    monkeypatch.setattr(bench.rows, "claim", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.claimer.claim(taken)
    assert bench.buffer.take("thread", 10, NOW) == taken


def test_nothing_is_granted_to_a_worker_whose_lease_is_over(bench: Bench) -> None:
    bench.beat("w", lease=0.0)
    assert bench.claim(bench.record()) == []
    assert bench.counts.seen == {"held": 1}


def run_of(bench: Bench, record: Record) -> Run:
    assert bench.claim(record) == []
    (run,) = bench.ended
    assert run.delivery.token == 1, "the job is claimed: it is settled like any other"
    return run


class TestWhatCannotRun:
    def test_a_malformed_record_is_rejected_with_its_problem(self, bench: Bench) -> None:
        record = bench.record()
        record = record._replace(headers=[each for each in record.headers if each[0] != h.TENANT])
        outcome = run_of(bench, record).outcome
        assert isinstance(outcome, Rejected)
        assert (outcome.reason, outcome.failure.message) == ("malformed", f"header {h.TENANT} is missing")

    def test_a_payload_that_cannot_be_decoded_is_rejected(self, bench: Bench) -> None:
        outcome = run_of(bench, bench.record(value=b"garbage")).outcome
        assert isinstance(outcome, Rejected)
        assert outcome.reason == "undecodable"

    def test_a_record_without_a_value_is_rejected(self, bench: Bench) -> None:
        outcome = run_of(bench, bench.record()._replace(value=None)).outcome
        assert isinstance(outcome, Rejected)
        assert outcome.reason == "undecodable"

    def test_a_schema_that_is_not_known_yet_is_retried(self, bench: Bench) -> None:
        outcome = run_of(bench, bench.record(value=b"?new")).outcome
        assert isinstance(outcome, Failed)
        assert outcome.reason == "unknown_schema"

    def test_a_job_type_without_a_handler_is_retried_and_names_those_there_are(self, bench: Bench) -> None:
        outcome = run_of(bench, bench.record(job_type="report.build")).outcome
        assert isinstance(outcome, Failed)
        assert outcome.reason == "unknown_job_type"
        assert "'report.build'" in outcome.failure.message
        assert "email.send" in outcome.failure.message

    @pytest.mark.parametrize("error", [BrokerUnavailable, RegistryUnavailable])
    def test_an_outage_of_where_schemas_are_looked_up_burns_no_attempt(self, error: type[Exception]) -> None:
        codec = AwayCodec()
        codec.error = error
        assert isinstance(run_of(Bench(codec), Bench().record()).outcome, Snoozed)

    def test_neighbours_in_the_batch_run(self, bench: Bench) -> None:
        bad, good = bench.record(value=b"garbage"), bench.record()
        assert [each.record for each in bench.claim(bad, good)] == [good]
        assert [run.delivery.record for run in bench.ended] == [bad]


def moves(deliveries: Sequence[Delivery], events: NoEvents) -> list[tuple[str, str]]:
    return [(move.previous.value, move.state.value) for move in events.moves]


@pytest.mark.parametrize(
    ("state", "hop", "first"),
    [(None, 0, "pending"), (JobState.RETRYING, 1, "retrying"), (JobState.DEAD, 1, "dead")],
)
def test_a_grant_is_told_as_the_moves_it_stands_for(
    bench: Bench, state: JobState | None, hop: int, first: str
) -> None:
    record = bench.record()
    job = delivery_of(record).job
    if state:
        bench.settled(record, state)
    granted = bench.claim(record_of(job._replace(hop=hop), offset=50))
    assert moves(granted, bench.events) == [(first, "queued"), ("queued", "running")]


class Waits(Counts):
    """Keeps the waiting times."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_waits: list[float] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "observe_waiting":
            return lambda _job_type, _queue, values: self.seen_waits.extend(values)
        return object.__getattribute__(self, name) if name == "seen_waits" else super().__getattribute__(name)


def test_waiting_is_measured_from_when_a_job_could_have_run() -> None:
    waits = Waits()
    bench = Bench(counts=waits)
    bench.clock.advance(100)
    bench.claim(bench.record(), bench.record(not_before=NOW + 97))
    assert waits.seen_waits == [100.0, 3.0]
