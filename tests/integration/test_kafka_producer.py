"""The producer on a real Kafka: records that share a batch with a bad one, fatal errors, speed of a single write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from confluent_kafka import KafkaError

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.core.topics import TopicSpec
from pipeline.errors import PayloadTooLarge
from tests.contract.brokers import outgoing
from tests.servers import TestServers

pytestmark = pytest.mark.servers


@pytest.fixture
def small(servers: TestServers) -> Iterator[str]:
    """A topic that takes batches of 5,000 bytes, which is less than the producers here believe."""
    admin = KafkaAdmin(admin_config(servers.bootstrap_servers))
    name = f"t{uuid.uuid4().hex[:12]}"
    admin.create([TopicSpec(name, 1, 1, {"max.message.bytes": "5000"})])
    yield name
    admin.delete([name])


def producer(
    servers: TestServers, *, linger_ms: float = 0, extra: Mapping[str, str] | None = None
) -> KafkaJobProducer:
    config = producer_config(
        servers.bootstrap_servers, linger_ms=linger_ms, compression="none", extra=extra or {}
    )
    return KafkaJobProducer(config, max_message_bytes=1_000_000)


def values(servers: TestServers, topic: str) -> list[bytes | None]:
    reader = KafkaReader(consumer_config(servers.bootstrap_servers, group="reader"))
    return [record.value for record in reader.read(topic)]


def test_a_record_that_the_broker_finds_too_large_fails_and_its_batch_does_not(
    servers: TestServers, small: str
) -> None:
    wanted = [b"%d" % number for number in range(50)]
    records = [outgoing(small, value) for value in wanted]
    records.insert(25, outgoing(small, b"x" * 6000))
    with closing(producer(servers, linger_ms=200)) as sender:
        ends = sender.send_all(records)
    assert [index for index, end in enumerate(ends) if end.error] == [25]
    assert type(ends[25].error) is PayloadTooLarge
    assert small in str(ends[25].error)
    assert values(servers, small) == wanted


def test_a_batch_that_is_too_large_as_a_whole_is_written_all_the_same(
    servers: TestServers, small: str
) -> None:
    records = [outgoing(small, b"%03d" % number + b"x" * 500) for number in range(100)]
    with closing(producer(servers, linger_ms=200)) as sender:
        ends = sender.send_all(records)
    assert all(end.error is None for end in ends)
    assert sorted(values(servers, small), key=str) == [record.value for record in records]


def test_batches_stay_below_the_limit_that_is_given(servers: TestServers, small: str) -> None:
    config = producer_config(servers.bootstrap_servers, linger_ms=200, compression="none")
    sender = KafkaJobProducer(config, max_message_bytes=1_000_000, max_batch_bytes=5000)
    records = [outgoing(small, b"%03d" % number + b"x" * 500) for number in range(100)]
    with closing(sender):
        assert all(end.error is None for end in sender.send_all(records))
    assert values(servers, small) == [record.value for record in records]  # in order: none was written again


def test_a_producer_that_a_fatal_error_ended_is_replaced(
    servers: TestServers, small: str, caplog: pytest.LogCaptureFixture
) -> None:
    # With this option the refused batch is fatal for the producer.
    with closing(producer(servers, extra={"enable.gapless.guarantee": "true"})) as sender:
        assert type(sender.send_all([outgoing(small, b"x" * 6000)])[0].error) is PayloadTooLarge
        assert sender.send_all([outgoing(small, b"after")])[0].error is None
        assert sender.send_all([outgoing(small, b"later")])[0].error is None
    assert caplog.text.count("a fatal error ended the producer") == 1
    assert values(servers, small) == [b"after", b"later"]


@pytest.mark.parametrize("how", ["send", "send_all", "send_many"])
def test_each_kind_of_write_that_succeeds_says_that_the_producer_is_well(
    servers: TestServers, small: str, how: str
) -> None:
    """Or writes that timed out long before and after it would look like one stall."""
    record = outgoing(small)
    with closing(producer(servers)) as sender:
        sender._stall.note(KafkaError(KafkaError._MSG_TIMED_OUT), 1.0)
        if how == "send":
            sender.send(record)
        elif how == "send_all":
            sender.send_all([record])
        else:
            refused: list[object] = []
            sender.send_many(
                small,
                [(b"k", b"v")],
                on_acknowledged=lambda: None,
                on_refused=lambda *end: refused.append(end),
            )
        assert sender.flush(10) == 0
        assert not sender._stall.since
