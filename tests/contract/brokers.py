"""What the contract of brokers runs on: the real Kafka and its in-memory twin behind one small face."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.memory_broker import MemoryBroker
from pipeline.core.clock import SystemClock
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import JobConsumer, JobProducer, ManyProducer, Outgoing
from pipeline.core.topics import TopicSpec

LIMIT = 10_000  # bytes in a record


class AnyProducer(JobProducer, ManyProducer, Protocol):
    """What the producers of an adapter can do."""


class Member:
    """A consumer with a listener that notes what it is told, and what was polled."""

    def __init__(self, consumer: JobConsumer) -> None:
        self.consumer = consumer
        self.events: list[tuple[str, list[Partition]]] = []
        self.records: list[Record] = []
        self.owned: set[Partition] = set()
        self.before_revoke: Callable[[Sequence[Partition]], object] = lambda _partitions: None
        self.on_assign: Callable[[Sequence[Partition]], object] = lambda _partitions: None

    def on_assigned(self, partitions: Sequence[Partition]) -> None:
        self.events.append(("assigned", list(partitions)))
        self.owned.update(partitions)
        self.on_assign(partitions)

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        self.before_revoke(partitions)
        self.events.append(("revoked", list(partitions)))
        self.owned.difference_update(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        self.events.append(("lost", list(partitions)))
        self.owned.difference_update(partitions)

    def poll(self, max_records: int = 100) -> list[Record]:
        records = self.consumer.poll(max_records, 0.02)
        self.records += records
        return records

    def told(self, event: str) -> list[Partition]:
        return [partition for name, partitions in self.events if name == event for partition in partitions]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class Broker:
    """One test's view of a broker: topics of its own, one group."""

    def __init__(self) -> None:
        self.group = f"g{uuid.uuid4().hex[:12]}"
        self.members: list[Member] = []
        self.producers: list[AnyProducer] = []

    def topic(self, partitions: int = 1) -> str:
        raise NotImplementedError

    def new_producer(self) -> AnyProducer:
        raise NotImplementedError

    def new_consumer(self) -> JobConsumer:
        raise NotImplementedError

    def committed(self, topic: str) -> dict[Partition, int]:
        raise NotImplementedError

    def lose(self, member: Member, *, to: Member) -> None:
        """Let the session of `member` end without its knowing, and `to` take over all it owned."""
        raise NotImplementedError

    def producer(self) -> AnyProducer:
        self.producers.append(self.new_producer())
        return self.producers[-1]

    def member(self, *topics: str) -> Member:
        """A member of the group that has subscribed, but has not polled yet."""
        member = Member(self.new_consumer())
        self.members.append(member)
        member.consumer.subscribe(topics, member)
        return member

    def joined(self, *topics: str, partitions: int) -> Member:
        """A member that owns so many partitions."""
        member = self.member(*topics)
        until(lambda: len(member.owned) == partitions, member)
        return member

    def close(self) -> None:
        for producer in self.producers:
            producer.close()
        for member in self.members:
            member.before_revoke = lambda _partitions: None
            member.consumer.close()


class InMemory(Broker):
    def __init__(self) -> None:
        super().__init__()
        self._broker = MemoryBroker(SystemClock(), max_message_bytes=LIMIT)

    def topic(self, partitions: int = 1) -> str:
        name = f"t{uuid.uuid4().hex[:12]}"
        self._broker.create_topic(name, partitions)
        return name

    def new_producer(self) -> AnyProducer:
        return self._broker.producer()

    def new_consumer(self) -> JobConsumer:
        return self._broker.consumer(self.group)

    def committed(self, topic: str) -> dict[Partition, int]:
        found = self._broker.committed(self.group)
        return {partition: offset for partition, offset in found.items() if partition.topic == topic}

    def lose(self, member: Member, *, to: Member) -> None:
        self._broker.expire(member.consumer)  # type: ignore[arg-type]  # made by new_consumer
        until(lambda: member.owned <= to.owned, to)


class Real(Broker):
    """Real Kafka. Sessions are as short as it allows, so that they can be lost in a test."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._admin = KafkaAdmin(admin_config(bootstrap))
        self._topics: list[str] = []

    def topic(self, partitions: int = 1) -> str:
        name = f"t{uuid.uuid4().hex[:12]}"
        self._admin.create([TopicSpec(name, partitions, 1, {"max.message.bytes": str(LIMIT)})])
        self._topics.append(name)
        return name

    def new_producer(self) -> AnyProducer:
        config = producer_config(self._bootstrap, linger_ms=0, compression="none")
        return KafkaJobProducer(config, max_message_bytes=LIMIT)

    def new_consumer(self) -> JobConsumer:
        return KafkaJobConsumer(
            consumer_config(self._bootstrap, group=self.group, session_timeout=6, max_poll_interval=6)
        )

    def committed(self, topic: str) -> dict[Partition, int]:
        positions = self._admin.group_lag(self.group, [topic])
        return {
            partition: position.committed
            for partition, position in positions.items()
            if position.committed is not None
        }

    def lose(self, member: Member, *, to: Member) -> None:
        until(lambda: member.owned <= to.owned, to, seconds=40)  # `member` does not poll meanwhile

    def close(self) -> None:
        super().close()
        self._admin.delete(self._topics)


@contextmanager
def opened(broker: Broker) -> Iterator[Broker]:
    try:
        yield broker
    finally:
        broker.close()


def until(condition: Callable[[], bool], *members: Member, seconds: float = 20) -> None:
    """Poll the members in turn until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, [member.events for member in members]
        for member in members:
            member.poll()


def rest(*members: Member, seconds: float = 0.5) -> None:
    """Poll the members for a while in which nothing should happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for member in members:
            member.poll()


def outgoing(topic: str, value: bytes | None = b"v", *, key: bytes | None = b"k") -> Outgoing:
    return Outgoing(topic, key, value, [])
