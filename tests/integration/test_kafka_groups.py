"""The consumer in its group, on a real Kafka and with each way of sharing partitions: nothing is lost, no offset falls."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Producer

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.core.job import Record
from pipeline.core.offsets import OffsetTracker, Partition
from pipeline.core.topics import TopicSpec
from pipeline.errors import PipelineError, TopicsMissing
from tests.contract.brokers import Member, outgoing, rest, until
from tests.servers import TestServers

pytestmark = pytest.mark.servers

PROTOCOLS = [
    pytest.param({}, id="range"),
    pytest.param({"partition.assignment.strategy": "cooperative-sticky"}, id="cooperative-sticky"),
    pytest.param({"group.protocol": "consumer"}, id="kip-848"),
]


class Cluster:
    """Topics and clients of one test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = KafkaAdmin(admin_config(bootstrap))
        self.group = f"g{uuid.uuid4().hex[:12]}"
        self.topics: list[str] = []
        self.clients = ExitStack()

    def topic(self, partitions: int = 1) -> str:
        self.topics.append(f"t{uuid.uuid4().hex[:12]}")
        self.admin.create([TopicSpec(self.topics[-1], partitions, 1)])
        return self.topics[-1]

    def producer(self) -> KafkaJobProducer:
        return self.clients.enter_context(
            closing(KafkaJobProducer(producer_config(self.bootstrap, linger_ms=0)))
        )

    def consumer(self, extra: Mapping[str, str] | None = None, *, session: float = 6) -> KafkaJobConsumer:
        config = consumer_config(self.bootstrap, group=self.group, session_timeout=session, extra=extra or {})
        return self.clients.enter_context(closing(KafkaJobConsumer(config)))

    def committed(self, topic: str) -> dict[Partition, int]:
        positions = self.admin.group_lag(self.group, [topic])
        return {partition: found.committed or 0 for partition, found in positions.items()}


@pytest.fixture
def cluster(servers: TestServers) -> Iterator[Cluster]:
    made = Cluster(servers.bootstrap_servers)
    with made.clients:
        yield made
    made.admin.delete(made.topics)


class Worker(Member):
    """Does each record at once, and commits as a worker does: what is done, at each poll and on revoke."""

    def __init__(self, consumer: KafkaJobConsumer, topic: str) -> None:
        super().__init__(consumer)
        self.tracker = OffsetTracker()
        self.before_revoke = self._settle
        self.on_assign = self.tracker.assign
        consumer.subscribe([topic], self)

    def poll(self, max_records: int = 7) -> list[Record]:
        for record in super().poll(max_records):
            partition = Partition(record.topic, record.partition)
            epoch = self.tracker.received(partition, record.offset)
            assert epoch, "a record of a partition that is not assigned"
            self.tracker.done(partition, record.offset, epoch)
        self.consumer.commit(self.tracker.take_commits(), wait=False)
        self.tracker.commit_failed(self.consumer.failed_commits())
        return self.records

    def _settle(self, partitions: Sequence[Partition]) -> None:
        self.consumer.commit(self.tracker.take_commits(partitions), wait=True)
        self.tracker.drop(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        super().on_lost(partitions)
        self.tracker.drop(partitions)


@pytest.mark.parametrize("extra", PROTOCOLS)
def test_members_that_come_and_go_lose_nothing_and_let_no_offset_fall(
    cluster: Cluster, extra: Mapping[str, str]
) -> None:
    topic, total = cluster.topic(6), 3000
    sender = cluster.producer()
    workers = [Worker(cluster.consumer(extra), topic)]
    seen: set[bytes | None] = set()
    highest: dict[Partition, int] = {}

    def step() -> bool:
        for worker in workers:
            worker.poll()
            seen.update(worker.values())
            worker.records.clear()
        owned = [partition for worker in workers for partition in worker.owned]
        assert len(owned) == len(set(owned)), "two members own a partition"
        return bool(owned)

    def shared() -> bool:
        return step() and all(worker.owned for worker in workers) and sum(len(w.owned) for w in workers) == 6

    for turn in range(4):
        part = range(turn * total // 4, (turn + 1) * total // 4)
        sender.send_all([outgoing(topic, b"%d" % n, key=b"%d" % (n % 50)) for n in part])
        if turn % 2 == 0:
            workers.append(Worker(cluster.consumer(extra), topic))
        else:
            workers.pop(0).consumer.close()
        until(shared, seconds=40)
        for partition, offset in cluster.committed(topic).items():
            assert offset >= highest.get(partition, 0)
            highest[partition] = offset
    until(lambda: step() and len(seen) == total, seconds=40)
    until(lambda: step() and cluster.committed(topic) == cluster.admin.end_offsets([topic]), seconds=40)


@pytest.mark.parametrize("extra", PROTOCOLS)
def test_members_that_read_only_main_topics_share_them_evenly(
    cluster: Cluster, extra: Mapping[str, str]
) -> None:
    main, retries = cluster.topic(4), [cluster.topic(4) for _ in range(3)]
    members = [Member(cluster.consumer(extra)) for _ in range(4)]
    for number, member in enumerate(members):
        member.consumer.subscribe(retries if number % 2 else [main], member)
    until(lambda: [len(member.owned) for member in members] == [2, 6, 2, 6], *members, seconds=40)


def test_partitions_that_are_added_are_read_from_their_start(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    member = Member(cluster.consumer({"topic.metadata.refresh.interval.ms": "500"}))
    member.consumer.subscribe([topic], member)
    until(lambda: len(member.owned) == 1, member)
    cluster.admin.add_partitions(topic, 4)
    keys = [b"%d" % number for number in range(50)]
    # A producer that sees all four writes before the group has noticed.
    until(lambda: len(cluster.admin.end_offsets([topic])) == 4)
    cluster.producer().send_all([outgoing(topic, key, key=key) for key in keys])
    until(lambda: len(member.owned) == 4, member, seconds=40)
    until(lambda: set(member.values()) == set(keys), member)


def test_a_topic_that_is_deleted_ends_the_polling_loudly(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    member = Member(cluster.consumer({"topic.metadata.refresh.interval.ms": "500"}))
    member.consumer.subscribe([topic], member)
    until(lambda: len(member.owned) == 1, member)
    cluster.admin.delete([topic])
    with pytest.raises(TopicsMissing, match=rf"topic {topic} was deleted"):
        until(lambda: False, member, seconds=60)


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(cluster: Cluster) -> None:
    topic = cluster.topic(4)
    # So long that a busy machine, too, is back within it.
    other = Member(cluster.consumer(session=60))
    other.consumer.subscribe([topic], other)
    fixed = Member(cluster.consumer({"group.instance.id": "one"}, session=60))
    fixed.consumer.subscribe([topic], fixed)
    until(lambda: len(fixed.owned) == len(other.owned) == 2, fixed, other)
    had, events = set(fixed.owned), len(other.events)
    fixed.consumer.close()
    again = Member(cluster.consumer({"group.instance.id": "one"}, session=60))
    again.consumer.subscribe([topic], again)
    until(lambda: again.owned == had, again, other)
    assert len(other.events) == events


def test_a_second_process_with_the_same_instance_id_ends_the_first_loudly(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    first = Member(cluster.consumer({"group.instance.id": "one"}))
    first.consumer.subscribe([topic], first)
    until(lambda: len(first.owned) == 1, first)
    second = Member(cluster.consumer({"group.instance.id": "one"}))
    second.consumer.subscribe([topic], second)
    with pytest.raises(PipelineError, match=r"cannot go on: .*same group\.instance\.id"):
        until(lambda: False, second, first, seconds=40)


def test_aborted_and_open_transactions_of_others_are_never_given(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    foreign = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": uuid.uuid4().hex})
    foreign.init_transactions(20)
    reader = KafkaReader(consumer_config(cluster.bootstrap, group="reader"))
    member = Member(cluster.consumer())
    member.consumer.subscribe([topic], member)
    for value, end in ((b"aborted", foreign.abort_transaction), (b"committed", foreign.commit_transaction)):
        foreign.begin_transaction()
        foreign.produce(topic, value)
        foreign.flush(20)
        end(20)
    foreign.begin_transaction()
    foreign.produce(topic, b"open")
    foreign.flush(20)
    until(lambda: bool(member.records), member)
    rest(member)
    assert member.values() == [b"committed"]
    assert [record.value for record in reader.read(topic)] == [b"committed"]
    foreign.abort_transaction(20)
    assert [record.value for record in reader.read(topic)] == [b"committed"]
