"""Next records are written each by itself, tried again until they are there, or parked when no topic takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest

from pipeline.adapters.memory_breakers import MemoryParking
from pipeline.core import headers as h
from pipeline.core.decision import DeadLetter, Decision, Finish, RunLater
from pipeline.core.job import Record, Source
from pipeline.core.outcome import Failed, Failure
from pipeline.core.parked import is_parked
from pipeline.core.ports import Delivered, Outgoing
from pipeline.core.state import JobState, Trigger
from pipeline.errors import PayloadTooLarge, PipelineError, PublishFailed
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.next_records import NextRecords, Unsettled
from pipeline.runtime.onward import dead_letter, parked_letter, retry_record
from tests.unit.runtime_parts import NOW, delivery_of, new_job, record_of

RETRY, DLQ = "jobs.default.retry.10s", "jobs.default.dlq"
FAILURE = Failure("ValueError", "no", "File handlers.py, line 3" * 50)
LATER = RunLater(10.0, NOW + 10, 2, FAILURE, (Trigger.ERROR, Trigger.RETRY_SCHEDULED))
DEAD = DeadLetter("max_attempts", FAILURE, (Trigger.ERROR, Trigger.MAX_RETRIES_EXCEEDED))


class SlowProducer:
    """Ends a write only when told to; topics in `refusing` are refused at once."""

    def __init__(self) -> None:
        self.under_way: deque[tuple[Outgoing, Callable[[Delivered], None]]] = deque()
        self.refusing: dict[str, PipelineError] = {}
        self.sent: list[Outgoing] = []

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        assert on_delivery is not None
        if record.topic in self.refusing:
            raise self.refusing[record.topic]
        self.sent.append(record)
        self.under_way.append((record, on_delivery))

    def end_first(self, error: Exception | None = None) -> None:
        record, on_delivery = self.under_way.popleft()
        on_delivery(Delivered(None if error else Source(record.topic, 0, 1), error))

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        raise AssertionError(f"nobody waits for all of {len(records)}")

    def flush(self, timeout: float) -> int:
        del timeout
        return len(self.under_way)

    def close(self) -> None:
        pass


class Desk:
    """Next records over a slow producer, and how often it was told that something arrived."""

    def __init__(self, *, parking: MemoryParking | None = None) -> None:
        self.producer = SlowProducer()
        self.arrivals = 0
        self.records = NextRecords(
            producer=self.producer,
            letter_of=lambda delivery, decision: parked_letter(_letter(delivery, decision)),
            parking=parking,
            on_arrival=self._arrived,
        )

    def _arrived(self) -> None:
        self.arrivals += 1


def _letter(delivery: Delivery, decision: DeadLetter) -> Outgoing:
    return dead_letter(delivery, decision, topic=DLQ, group="workers", now=NOW)


def unsettled(decision: Decision) -> Unsettled:
    delivery = delivery_of(record_of(new_job(hop=2), value=b"x" * 10_000))
    run = Run(delivery, Failed(FAILURE), NOW, NOW)
    if isinstance(decision, RunLater):
        return Unsettled(
            run, decision, retry_record(delivery, decision, topic=RETRY, group="workers", now=NOW)
        )
    return Unsettled(run, decision, _letter(delivery, decision) if isinstance(decision, DeadLetter) else None)


def is_written(item: Unsettled) -> bool:
    return item.next_record is None and item.error is None


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_has_no_next_record_is_ready_at_once(desk: Desk) -> None:
    item = unsettled(Finish(JobState.COMPLETED, (Trigger.SUCCESS,)))
    assert desk.records.write([item]) == ([item], [])


def test_a_run_is_ready_when_its_record_is_acknowledged_and_no_other_waits_for_it(desk: Desk) -> None:
    slow, quick = unsettled(LATER), unsettled(DEAD)
    done = unsettled(Finish(JobState.COMPLETED, (Trigger.SUCCESS,)))
    assert desk.records.write([slow, quick, done]) == ([done], [])
    assert desk.records.on_the_way() == 2
    assert desk.records.arrived() == []
    desk.producer.under_way.rotate()
    desk.producer.end_first()
    assert desk.arrivals == 1
    assert desk.records.arrived() == [quick]
    assert quick.next_record is None
    assert desk.records.on_the_way() == 1
    desk.producer.end_first()
    assert desk.records.arrived() == [slow]


def test_a_write_that_failed_arrives_with_its_error_and_is_written_again(desk: Desk) -> None:
    item = unsettled(DEAD)
    error = PublishFailed("not enough replicas")
    desk.records.write([item])
    desk.producer.end_first(error)
    assert desk.records.arrived() == [item]
    assert (item.error, item.tries) == (error, 1)
    assert item.next_record is not None
    assert desk.records.write([item]) == ([], [])
    desk.producer.end_first()
    assert desk.records.arrived() == [item]
    assert is_written(item)


def test_what_is_refused_before_it_leaves_is_given_back(desk: Desk) -> None:
    item = unsettled(LATER)
    desk.producer.refusing[RETRY] = PublishFailed("the local buffer was full")
    assert desk.records.write([item]) == ([], [item])
    assert desk.records.on_the_way() == 0


def test_without_parking_a_record_that_is_too_large_is_refused_like_any_other(desk: Desk) -> None:
    item = unsettled(LATER)
    desk.producer.refusing[RETRY] = PayloadTooLarge("12 bytes; allowed: at most 11")
    for _ in range(2):
        assert desk.records.write([item]) == ([], [item])


# --- parking


@pytest.fixture
def parking() -> MemoryParking:
    return MemoryParking()


def parked(parking: MemoryParking, item: Unsettled) -> Record:
    delivery = item.run.delivery
    found = parking.load(delivery.job.job_id, delivery.job.hop)
    assert found is not None
    return found.record


@pytest.mark.parametrize("late", [False, True])
def test_a_retry_that_no_topic_takes_is_parked_whole_and_its_job_is_dead(
    parking: MemoryParking, *, late: bool
) -> None:
    desk = Desk(parking=parking)
    item = unsettled(LATER)
    error = PayloadTooLarge("too large")
    if late:  # the broker says so
        desk.records.write([item])
        desk.producer.end_first(error)
        assert desk.records.arrived() == [item]
    else:  # the client says so
        desk.producer.refusing[RETRY] = error
    assert desk.records.write([item]) == ([], [])
    assert isinstance(item.decision, DeadLetter)
    assert (item.decision.reason, item.decision.failure) == ("too_large", FAILURE)
    assert parked(parking, item) == item.run.delivery.record
    _assert_reference(desk.producer.sent[-1], item, reason=b"too_large")
    desk.producer.end_first()
    assert desk.records.arrived() == [item]
    assert item.next_record is None


def test_a_letter_that_no_topic_takes_is_parked_and_its_job_dies_of_what_it_died_of(
    parking: MemoryParking,
) -> None:
    desk = Desk(parking=parking)
    item = unsettled(DEAD)
    desk.records.write([item])
    desk.producer.end_first(PayloadTooLarge("too large"))
    desk.records.arrived()
    desk.records.write([item])
    assert item.decision == DEAD
    _assert_reference(desk.producer.sent[-1], item, reason=b"max_attempts")


def _assert_reference(letter: Outgoing, item: Unsettled, *, reason: bytes) -> None:
    headers = dict(letter.headers)
    job = item.run.delivery.job
    assert (letter.topic, letter.key, letter.value) == (DLQ, job.tenant.encode(), b"")
    assert (headers[h.ID], headers[h.HOP], headers[h.REASON]) == (job.job_id.encode(), b"2", reason)
    assert not [name for name in headers if name.endswith("stack")]
    assert is_parked(Record(letter.topic, 0, 0, letter.key, letter.value, letter.headers, NOW))
    assert sum(len(name) + len(value or b"") for name, value in letter.headers) < 3000


def test_headers_of_a_stranger_do_not_come_along(parking: MemoryParking) -> None:
    desk = Desk(parking=parking)
    record = record_of(new_job())
    stranger = record._replace(
        headers=[*record.headers, ("x-blob", b"b" * 100_000), ("pipeline-x", b"b" * 100_000)]
    )
    run = Run(delivery_of(stranger), Failed(FAILURE), NOW, NOW)
    item = Unsettled(run, DEAD, _letter(run.delivery, DEAD))
    desk.producer.refusing = {DLQ: PayloadTooLarge("too large")}
    assert desk.records.write([item]) == ([], [item])  # the letter is refused too: it waits
    desk.producer.refusing = {}
    desk.records.write([item])
    assert sum(len(value or b"") for _, value in desk.producer.sent[-1].headers) < 3000
    assert parked(parking, item) == stranger


def test_while_the_store_is_away_the_record_is_held(parking: MemoryParking) -> None:
    parking.close()
    desk = Desk(parking=parking)
    item = unsettled(LATER)
    desk.producer.refusing[RETRY] = PayloadTooLarge("too large")
    for _ in range(2):
        assert desk.records.write([item]) == ([], [item])
        assert item.decision == LATER
        assert item.too_large
