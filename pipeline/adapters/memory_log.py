"""The logs of the in-memory Kafka, and the lock that guards everything in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pipeline.core.clock import Clock
from pipeline.core.job import Record, Source
from pipeline.core.offsets import Partition
from pipeline.core.partitioner import partition_of
from pipeline.core.ports import Delivered, Outgoing
from pipeline.errors import ConfigError, PipelineError, PublishFailed

__all__ = ["MemoryLogs"]


class MemoryLogs:
    """Topics with their records. Whoever calls holds `changed`; it is told of records and of moves in groups."""

    def __init__(self, clock: Clock) -> None:
        self.changed = threading.Condition()
        self.refuse: Callable[[Outgoing], PipelineError | None] = lambda _record: None
        self._clock = clock
        self._topics: dict[str, list[list[Record]]] = {}
        self._keyless = 0

    def create(self, topic: str, partitions: int) -> None:
        if topic in self._topics or partitions < 1:
            raise ConfigError(f"topic {topic!r} with {partitions} partitions; allowed: a new name, 1 or more")
        self._topics[topic] = [[] for _ in range(partitions)]

    def grow(self, topic: str, total: int) -> None:
        logs = self._topics[topic]
        logs += [[] for _ in range(total - len(logs))]

    def missing(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if topic not in self._topics]

    def partitions(self, topic: str) -> list[Partition]:
        return [Partition(topic, number) for number in range(len(self._topics[topic]))]

    def log(self, partition: Partition) -> list[Record]:
        return self._topics[partition.topic][partition.number]

    def append(self, record: Outgoing) -> Delivered:
        """Write a record, or say why not."""
        logs = self._topics.get(record.topic)
        if logs is None:
            missing = PublishFailed(
                f"topic {record.topic} does not exist: `pipeline topics apply` creates it"
            )
            return Delivered(None, missing)
        error = self.refuse(record)
        if error is not None:
            return Delivered(None, error)
        topic, key, value, headers = record
        number = self._choose(key, len(logs))
        source = Source(topic, number, len(logs[number]))
        logs[number].append(Record(*source, key, value, list(headers), self._clock.time()))
        self.changed.notify_all()
        return Delivered(source, None)

    def _choose(self, key: bytes | None, partitions: int) -> int:
        if key is not None:
            return partition_of(key, partitions)
        self._keyless += 1  # Kafka takes a random one; a test wants the same one each time
        return self._keyless % partitions
