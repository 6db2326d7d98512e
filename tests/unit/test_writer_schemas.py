"""Schemas that travel: announced before the first job, looked up sparingly, waited for while the place to look is away."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from pydantic import BaseModel

from pipeline.core.clock import ManualClock
from pipeline.core.headers import job_headers
from pipeline.core.job import Job, Record, Source
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Failed, Outcome, Rejected, Snoozed
from pipeline.core.ports import Delivered, Outgoing
from pipeline.core.writer_schemas import WriterRef, WrittenSchema
from pipeline.errors import (
    BrokerUnavailable,
    PayloadError,
    PublishFailed,
    PublishUnknown,
    RegistryUnavailable,
    TopicsMissing,
    UnknownWriterSchema,
)
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.opening import decode_payload
from pipeline.runtime.schemas import BURST, Announcer, SchemaFinder, TopicSchemas

FIRST, SECOND = WriterRef("fingerprint", b"11111111"), WriterRef("fingerprint", b"22222222")
ID = WriterRef("id", b"\x00\x00\x00\x07")


# --- announcing


class Broker:
    """Takes records, or answers with an error."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.error: Exception | None = None

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        self.sent.extend(records)
        end = Delivered(None, self.error) if self.error else Delivered(Source("t", 0, 0), None)
        return [end for _ in records]


def announcer(broker: Broker, clock: ManualClock | None = None) -> Announcer:
    def written(job_type: str) -> WrittenSchema:
        return WrittenSchema(job_type, 3, b"12345678", "x.Y", '{"doc": "ü"}')

    return Announcer(producer=broker, topic="jobs.schemas", written=written, clock=clock or ManualClock())  # type: ignore[arg-type]  # the part that is used


def test_a_schema_is_written_once_for_each_job_type() -> None:
    broker = Broker()
    announce = announcer(broker)
    for job_type in ("a", "a", "b", "a"):
        announce(job_type)
    first, second = broker.sent
    assert (first.topic, first.key, first.value) == ("jobs.schemas", b"12345678", '{"doc": "ü"}'.encode())
    assert first.headers == [("pipeline-job-type", b"a"), ("pipeline-schema-version", b"3")]
    assert second.headers[0] == ("pipeline-job-type", b"b")


def test_threads_that_publish_their_first_job_together_write_one_schema() -> None:
    broker = Broker()
    announce = announcer(broker)
    threads = [threading.Thread(target=announce, args=("a",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(broker.sent) == 1


def test_without_its_schema_in_the_topic_no_job_is_sent_and_the_next_one_tries_again() -> None:
    broker, clock = Broker(), ManualClock()
    announce = announcer(broker, clock)
    broker.error = PublishUnknown("no answer in time")
    for _ in range(5):  # as in one publish_many: only the first of them waits for the broker
        with pytest.raises(PublishFailed, match=r"no job of type 'a' was sent.*no answer in time") as caught:
            announce("a")
        assert type(caught.value) is PublishFailed
    assert len(broker.sent) == 1
    clock.advance(1.5)
    broker.error = None
    announce("a")
    announce("a")
    assert len(broker.sent) == 2


# --- the topic


class Tail:
    """Gives what was put into it since the last time."""

    def __init__(self) -> None:
        self.new: list[tuple[bytes | None, bytes | None]] = []
        self.reads = 0
        self.error: Exception | None = None

    def read_new(self) -> Iterator[Record]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        new, self.new = self.new, []
        return (Record("t", 0, 0, key, value, [], 0.0) for key, value in new)


def test_a_schema_is_found_in_the_topic_and_kept() -> None:
    tail = Tail()
    tail.new = [(FIRST.value, b"one"), (SECOND.value, b"two"), (None, b"no key")]
    schemas = TopicSchemas(tail)
    assert (schemas.find(FIRST), schemas.find(SECOND), schemas.find(FIRST)) == ("one", "two", "one")
    assert tail.reads == 1


def test_a_later_record_replaces_an_earlier_one_and_an_empty_one_removes_it() -> None:
    tail = Tail()
    schemas = TopicSchemas(tail)
    tail.new = [(FIRST.value, b"old"), (SECOND.value, b"two"), (FIRST.value, b"new"), (SECOND.value, None)]
    assert (schemas.find(FIRST), schemas.find(SECOND)) == ("new", None)


def test_text_that_is_not_utf_8_is_given_for_the_codec_to_refuse() -> None:
    tail = Tail()
    tail.new = [(FIRST.value, b"\xff")]
    assert TopicSchemas(tail).find(FIRST) == "\ufffd"


def test_a_topic_that_does_not_exist_has_no_schemas(caplog: pytest.LogCaptureFixture) -> None:
    tail = Tail()
    tail.error = TopicsMissing("topic jobs.schemas does not exist")
    assert TopicSchemas(tail).find(FIRST) is None
    assert "jobs.schemas does not exist" in caplog.text


# --- looking up


class Place:
    """Somewhere to look, which counts how often it was asked."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.asked = 0
        self.error: Exception | None = None

    def __call__(self, ref: WriterRef) -> str | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.texts.get(ref.value.hex())


def finder(clock: ManualClock, topic: Place | None = None, registry: Place | None = None) -> SchemaFinder:
    return SchemaFinder(topic=topic, registry=registry, clock=clock, retry_after=10.0)


def test_fingerprints_are_looked_up_in_the_topic_and_ids_in_the_registry() -> None:
    topic, registry = (
        Place(**{FIRST.value.hex(): "from the topic"}),
        Place(**{ID.value.hex(): "from the registry"}),
    )
    find = finder(ManualClock(), topic, registry)
    assert (find(FIRST), find(ID)) == ("from the topic", "from the registry")
    assert (topic.asked, registry.asked) == (1, 1)
    assert finder(ManualClock())(ID) is None


def test_a_schema_that_is_missing_is_asked_for_again_after_a_second_and_others_at_once() -> None:
    topic, clock = Place(), ManualClock()
    find = finder(clock, topic)
    for _ in range(10):
        assert find(FIRST) is None
    assert topic.asked == 1
    assert find(SECOND) is None
    assert topic.asked == 2
    clock.advance(1.1)
    topic.texts = {FIRST.value.hex(): "there now"}
    assert find(FIRST) == "there now"


def test_a_flood_of_unknown_names_is_looked_up_at_a_bounded_rate() -> None:
    topic, clock = Place(), ManualClock()
    find = finder(clock, topic)
    for number in range(20_000):
        find(WriterRef("fingerprint", number.to_bytes(8, "big")))
    assert topic.asked == BURST
    clock.advance(1.0)
    for number in range(100):
        find(WriterRef("fingerprint", number.to_bytes(8, "little")))
    assert topic.asked == BURST + 10


@pytest.mark.parametrize("error", [RegistryUnavailable("refused"), BrokerUnavailable("refused")])
def test_a_place_that_is_away_is_not_asked_again_for_a_while_and_raises_at_once(error: Exception) -> None:
    registry, clock = Place(**{ID.value.hex(): "text"}), ManualClock()
    topic = Place(**{FIRST.value.hex(): "text"})
    find = finder(clock, topic, registry)
    registry.error = error
    for _ in range(50):
        with pytest.raises(type(error), match="refused"):
            find(ID)
    assert registry.asked == 1
    assert find(FIRST) == "text"  # the other place is asked all the same
    registry.error = None
    clock.advance(10.1)
    assert find(ID) == "text"
    assert registry.asked == 2


# --- what becomes of the job


class FailingCodec:
    def __init__(self, error: Exception) -> None:
        self._error = error
        self.given: tuple[str, bytes, bytes] | None = None

    def decode(self, job_type: str, data: bytes, schema_id: bytes = b"") -> BaseModel:
        self.given = (job_type, data, schema_id)
        raise self._error


def opened(error: Exception) -> tuple[Outcome | None, FailingCodec]:
    job = Job("0198c1d2-0000-7000-8000-000000000001", "some.job", "acme", "default", schema_id=b"\x00abcd")
    record = Record("t", 0, 0, b"acme", b"bytes", job_headers(job, ce_time=""), 0.0)
    codec = FailingCodec(error)
    delivery = Delivery(record, Partition("t", 0), job, "")
    return decode_payload(delivery, codec), codec  # type: ignore[arg-type]  # the part that is used


@pytest.mark.parametrize("error", [RegistryUnavailable("away"), BrokerUnavailable("away")])
def test_while_the_place_to_look_is_away_a_job_is_put_off_and_burns_no_attempt(error: Exception) -> None:
    outcome, codec = opened(error)
    assert isinstance(outcome, Snoozed)
    assert codec.given == ("some.job", b"bytes", b"\x00abcd")


def test_a_schema_that_is_not_known_fails_the_attempt_and_names_the_dead_letter() -> None:
    outcome, _ = opened(UnknownWriterSchema("newer"))
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.permanent) == ("unknown_schema", False)


def test_a_payload_that_cannot_be_decoded_is_dead_at_once() -> None:
    outcome, _ = opened(PayloadError("broken"))
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "undecodable"
