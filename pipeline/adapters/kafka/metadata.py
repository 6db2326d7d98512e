"""Questions about topics that any client can ask, with a bounded wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pipeline.adapters.kafka.failures import describe, unavailable
from pipeline.errors import ConfigError, TopicsMissing

__all__ = ["UNSETTLED", "missing_topics", "partition_counts", "require_topics", "watermarks"]

# A topic that was just created, or whose leader moves: the same question is answered a moment later.
UNSETTLED = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
_STEP = 0.05

# Other errors, no leader above all, are of topics that exist.
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION})  # noqa: SLF001


class _Client(Protocol):
    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any: ...

    def poll(self, timeout: float) -> Any: ...


def partition_counts(
    client: _Client, topics: Iterable[str], *, bootstrap: str, timeout: float, idle: bool = False
) -> dict[str, int]:
    """Partitions of those topics that exist. Raises `BrokerUnavailable`, and `ConfigError` for a forbidden topic.

    `idle`: the client reads nothing yet, so it may be polled for the reason why nobody answers.
    """
    deadline = time.monotonic() + timeout
    counts: dict[str, int] = {}
    for topic in topics:
        try:
            found = client.list_topics(topic, timeout=max(0.01, deadline - time.monotonic())).topics[topic]
        except KafkaException as error:
            if idle:
                client.poll(0)
            raise unavailable(bootstrap, timeout, error) from None
        code = found.error.code() if found.error else KafkaError.NO_ERROR
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigError(f"Kafka refuses topic {topic} to this user: {describe(found.error)}")
        if code not in _ABSENT:
            counts[topic] = len(found.partitions)
    return counts


def missing_topics(
    client: _Client, topics: Iterable[str], *, bootstrap: str, timeout: float, idle: bool = False
) -> list[str]:
    """Those of the topics that do not exist, in order."""
    wanted = list(topics)
    there = partition_counts(client, wanted, bootstrap=bootstrap, timeout=timeout, idle=idle)
    return [topic for topic in wanted if topic not in there]


def require_topics(client: _Client, topics: Iterable[str], *, bootstrap: str, timeout: float) -> None:
    """Raise `TopicsMissing`, naming each topic that does not exist."""
    missing = missing_topics(client, topics, bootstrap=bootstrap, timeout=timeout)
    if missing:
        raise TopicsMissing(f"topics missing: {', '.join(missing)}; `pipeline topics apply` creates them")


def watermarks(
    consumer: Consumer, partition: TopicPartition, *, bootstrap: str, timeout: float
) -> tuple[int, int]:
    """The first offset of a partition, and the one after its last. Raises `BrokerUnavailable`."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()  # never set: waiting for it is a pause
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=timeout)
        except KafkaException as error:
            if error.args[0].code() not in UNSETTLED or time.monotonic() > deadline:
                raise unavailable(bootstrap, timeout, error) from None
            pause.wait(_STEP)
