"""A topic that stays open: read to its end, then on, whatever happens to it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Producer

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.tail import BEGINNING, KafkaTail, ReadFrom
from pipeline.core.ports import Outgoing
from pipeline.core.topics import TopicSpec
from pipeline.errors import BrokerUnavailable, TopicsMissing
from tests.servers import TestServers

pytestmark = pytest.mark.servers


@pytest.fixture
def topic(servers: TestServers, unique: str) -> Iterator[str]:
    with made(servers, unique):
        yield unique


@contextmanager
def made(servers: TestServers, name: str, partitions: int = 2) -> Iterator[None]:
    admin = KafkaAdmin(admin_config(servers.bootstrap_servers))
    admin.create([TopicSpec(name, partitions, 1, {"cleanup.policy": "compact"})])
    try:
        yield
    finally:
        admin.delete([name])


def tail(servers: TestServers, topic: str, start: ReadFrom = BEGINNING) -> KafkaTail:
    return KafkaTail(consumer_config(servers.bootstrap_servers, group=f"{topic}.tail"), topic, start=start)


def write(servers: TestServers, topic: str, *values: str) -> None:
    with closing(KafkaJobProducer(producer_config(servers.bootstrap_servers))) as producer:
        ends = producer.send_all([Outgoing(topic, value.encode(), value.encode(), []) for value in values])
    assert all(end.error is None for end in ends)


def new(opened: KafkaTail) -> set[str]:
    return {(record.value or b"").decode() for record in opened.read_new()}


def test_what_is_there_is_given_once_and_then_only_what_is_new(servers: TestServers, topic: str) -> None:
    with closing(tail(servers, topic)) as opened:
        assert new(opened) == set()
        write(servers, topic, "a", "b", "c")
        assert new(opened) == {"a", "b", "c"}
        assert new(opened) == set()
        write(servers, topic, "d")
        assert new(opened) == {"d"}


def test_a_new_record_is_seen_within_milliseconds(servers: TestServers, topic: str) -> None:
    """The quickest of several, and generous: the machine may be busy. Measured when idle: 4 ms."""
    write(servers, topic, "a")
    took = []
    with closing(tail(servers, topic)) as opened:
        new(opened)
        for value in "bcdef":
            write(servers, topic, value)
            started = time.monotonic()
            assert new(opened) == {value}
            took.append(time.monotonic() - started)
    assert min(took) < 1.0


def test_reading_begins_where_it_is_told_to(servers: TestServers, unique: str) -> None:
    with made(servers, unique, partitions=1):
        write(servers, unique, *"abcde")
        for start, expected in (
            (ReadFrom("end"), ""),
            (ReadFrom("offset", 3), "de"),
            (ReadFrom("offset", 99), ""),
            (ReadFrom("offset", 2, 0), "cde"),
            (ReadFrom("time", 0.0), "abcde"),
            (ReadFrom("time", time.time() + 3600), ""),
        ):
            with closing(tail(servers, unique, start)) as opened:
                assert new(opened) == set(expected)
        with closing(tail(servers, unique, ReadFrom("end"))) as opened:
            assert opened.wait(0.1) == []
            write(servers, unique, "f")
            assert {record.value for record in opened.wait(10)} == {b"f"}
        with pytest.raises(TopicsMissing, match="has no partition 7; allowed: 0 to 0"):
            new(tail(servers, unique, ReadFrom("offset", 0, 7)))


def test_an_aborted_transaction_at_the_end_is_passed_and_not_waited_for(
    servers: TestServers, topic: str
) -> None:
    write(servers, topic, "a")
    producer = Producer({"bootstrap.servers": servers.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", b"aborted", partition=0)
    producer.flush(10)
    producer.abort_transaction(10)
    with closing(tail(servers, topic)) as opened:
        assert new(opened) == {"a"}
        write(servers, topic, "b")
        assert new(opened) == {"b"}


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(servers: TestServers, unique: str) -> None:
    with made(servers, unique, partitions=1):
        write(servers, unique, *"abc")
        opened = tail(servers, unique)
        assert new(opened) == set("abc")
    with made(servers, unique, partitions=1), closing(opened):
        write(servers, unique, "z")
        assert new(opened) == {"z"}


def test_a_topic_that_does_not_exist_is_named(servers: TestServers, unique: str) -> None:
    with pytest.raises(TopicsMissing, match=f"topic {unique} does not exist"):
        new(tail(servers, unique))


def test_a_broker_that_is_away_is_waited_for_within_bounds() -> None:
    config = consumer_config("127.0.0.1:1", group="nobody")
    opened = KafkaTail(config, "any", timeout=0.5)
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        new(opened)
    assert time.monotonic() - started < 20
    opened.close()
