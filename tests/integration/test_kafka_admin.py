"""Topics, offsets and reading whole topics, on a real Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from pipeline.adapters.kafka.admin import GroupPosition, KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.core.offsets import Partition
from pipeline.core.topics import TopicSpec
from pipeline.errors import BrokerUnavailable, TopicsError, TopicsMissing
from tests.contract.brokers import Member, outgoing, until
from tests.servers import TestServers

pytestmark = pytest.mark.servers


@pytest.fixture
def admin(servers: TestServers) -> KafkaAdmin:
    return KafkaAdmin(admin_config(servers.bootstrap_servers))


@pytest.fixture
def topic(admin: KafkaAdmin) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    admin.create([TopicSpec(name, 3, 1, {"retention.ms": "86400000"})])
    yield name
    admin.delete([name])


def fill(servers: TestServers, topic: str, count: int) -> None:
    with closing(KafkaJobProducer(producer_config(servers.bootstrap_servers, linger_ms=0))) as sender:
        ends = sender.send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(count)])
        assert all(end.error is None for end in ends)


def reader(servers: TestServers) -> KafkaReader:
    return KafkaReader(consumer_config(servers.bootstrap_servers, group="reader"))


def test_a_topic_is_described_as_it_is(servers: TestServers, admin: KafkaAdmin, topic: str) -> None:
    found = admin.describe([topic, "no-such-topic"])
    assert list(found) == [topic]
    state = found[topic]
    assert (state.partitions, state.replication, state.is_empty) == (3, 1, True)
    assert state.config["retention.ms"] == "86400000"
    assert state.config["cleanup.policy"] == "delete"
    fill(servers, topic, 1)
    assert not admin.describe([topic])[topic].is_empty


def test_creating_twice_changes_nothing(admin: KafkaAdmin, topic: str) -> None:
    admin.create([TopicSpec(topic, 9, 1)])
    assert admin.describe([topic])[topic].partitions == 3


def test_setting_a_key_leaves_the_others_as_they_are(admin: KafkaAdmin, topic: str) -> None:
    admin.set_config(topic, {"max.message.bytes": "12345"})
    config = admin.describe([topic])[topic].config
    assert (config["max.message.bytes"], config["retention.ms"]) == ("12345", "86400000")


def test_what_kafka_refuses_is_told_with_the_topic_and_kafkas_reason(admin: KafkaAdmin, topic: str) -> None:
    with pytest.raises(TopicsError, match=rf"topic {topic} cannot be configured.*bogus"):
        admin.set_config(topic, {"bogus": "1"})
    with pytest.raises(TopicsError, match=rf"topic {topic} cannot have 2 partitions"):
        admin.add_partitions(topic, 2)
    with pytest.raises(TopicsError, match="topic no blanks cannot be created"):
        admin.create([TopicSpec("no blanks", 1, 1)])
    with pytest.raises(TopicsMissing, match="no-such-topic"):
        admin.end_offsets([topic, "no-such-topic"])


def test_deleting_what_is_not_there_is_harmless(admin: KafkaAdmin) -> None:
    admin.delete(["no-such-topic"])
    admin.delete([])


def test_the_lag_of_a_group_tells_what_it_committed_and_where_the_end_is(
    servers: TestServers, admin: KafkaAdmin, topic: str
) -> None:
    fill(servers, topic, 30)
    group = uuid.uuid4().hex
    ends = admin.end_offsets([topic])
    assert sum(ends.values()) == 30
    assert admin.group_lag(group, [topic]) == {p: GroupPosition(None, end) for p, end in ends.items()}
    member = Member(KafkaJobConsumer(consumer_config(servers.bootstrap_servers, group=group)))
    with closing(member.consumer):
        member.consumer.subscribe([topic], member)
        until(lambda: len(member.owned) == 3, member)
        assert member.consumer.commit({Partition(topic, 1): 2}, wait=True)
    lag = admin.group_lag(group, [topic])
    assert lag[Partition(topic, 1)] == GroupPosition(2, ends[Partition(topic, 1)])
    assert lag[Partition(topic, 0)] == GroupPosition(None, ends[Partition(topic, 0)])


def test_there_is_a_broker(admin: KafkaAdmin) -> None:
    assert admin.broker_count() >= 1


def test_without_a_broker_every_question_ends_in_time() -> None:
    lonely = KafkaAdmin(admin_config("127.0.0.1:1"), timeout=0.5)
    for ask in (lonely.broker_count, lambda: lonely.describe(["t"]), lambda: lonely.group_lag("g", ["t"])):
        with pytest.raises(BrokerUnavailable, match=r"no answer from Kafka at 127\.0\.0\.1:1 within 0\.5 s"):
            ask()
    with pytest.raises(BrokerUnavailable):
        lonely.create([TopicSpec("t", 1, 1)])


def test_a_topic_is_read_to_the_end_that_it_had_at_the_start(servers: TestServers, topic: str) -> None:
    fill(servers, topic, 500)
    records = reader(servers).read(topic)
    first = next(records)
    fill(servers, topic, 50)  # arrives while reading
    read = [first, *records]
    assert len(read) == 500
    for number in range(3):
        offsets = [record.offset for record in read if record.partition == number]
        assert offsets == list(range(len(offsets)))


def test_reading_starts_where_it_is_told_to(servers: TestServers, admin: KafkaAdmin, topic: str) -> None:
    fill(servers, topic, 60)
    ends = {partition.number: end for partition, end in admin.end_offsets([topic]).items()}
    read = list(reader(servers).read(topic, start={0: ends[0] - 2, 1: ends[1], 2: ends[2] + 5}))
    assert [(record.partition, record.offset) for record in read] == [(0, ends[0] - 2), (0, ends[0] - 1)]


def test_reading_an_empty_topic_ends_at_once_and_a_missing_one_is_named(
    servers: TestServers, topic: str
) -> None:
    assert list(reader(servers).read(topic)) == []
    with pytest.raises(TopicsMissing, match="no-such-topic"):
        list(reader(servers).read("no-such-topic"))
