"""Reads runs of offsets of a topic, outside any group: all partitions side by side, each in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import Conf, construct
from pipeline.adapters.kafka.failures import ClientLog, unavailable
from pipeline.adapters.kafka.metadata import require_topics
from pipeline.adapters.kafka.records import to_record
from pipeline.core.desk import Span
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.errors import BrokerUnavailable

__all__ = ["KafkaSpans"]

_BATCH = 1000
_POLL_SECONDS = 0.1


class KafkaSpans:
    """`config` comes from `consumer_config` (its group is never joined); `timeout` bounds each wait, in seconds."""

    def __init__(self, config: Conf, admin: KafkaAdmin, *, timeout: float = 10.0) -> None:
        self._admin = admin
        self._bootstrap: str = config["bootstrap.servers"]
        self._timeout = timeout
        # The end of a partition is told by an event: the last offset of a span may be a marker, not a record.
        self._config: Conf = {**config, "enable.partition.eof": "true"}
        self._log = ClientLog()

    def bounds(self, topic: str) -> list[Span]:
        """Where each partition begins, and where it ends at the moment. Raises `TopicsMissing`, `BrokerUnavailable`."""
        starts, ends = self._admin.start_offsets([topic]), self._admin.end_offsets([topic])
        return [
            Span(number, starts[Partition(topic, number)], end) for (_, number), end in sorted(ends.items())
        ]

    def read(self, topic: str, spans: Sequence[Span]) -> Generator[Record]:
        """Every record in these spans; those of a partition must be in order and apart.

        Whoever asks may take their time. Raises `TopicsMissing`, `BrokerUnavailable`.
        """
        if not spans:
            return
        consumer = construct(Consumer, self._config, self._log)
        try:
            require_topics(consumer, [topic], bootstrap=self._bootstrap, timeout=self._timeout)
            yield from _Reading(consumer, topic, spans, self._log).records(self._silence)
        except KafkaException as error:
            raise unavailable(self._bootstrap, self._timeout, error) from None
        finally:
            consumer.close()

    def _silence(self, seconds: float) -> None:
        if seconds > self._timeout:
            raise BrokerUnavailable(f"Kafka at {self._bootstrap} sent nothing for {self._timeout:g} s")


class _Reading:
    """What is left to read of each partition."""

    def __init__(self, consumer: Consumer, topic: str, spans: Sequence[Span], log: ClientLog) -> None:
        self._consumer = consumer
        self._topic = topic
        self._log = log
        self._left: dict[int, deque[Span]] = {}
        for span in spans:
            self._left.setdefault(span.partition, deque()).append(span)
        self._next = dict.fromkeys(self._left, 0)
        consumer.assign([self._at(number, left[0].start) for number, left in self._left.items()])

    def records(self, silence: Callable[[float], None]) -> Iterator[Record]:
        heard = time.monotonic()
        while self._left:
            first = self._consumer.poll(_POLL_SECONDS)
            if first is None:
                silence(time.monotonic() - heard)
                continue
            for message in (first, *self._consumer.consume(_BATCH, 0)):
                record = self._wanted(message)
                if record is not None:
                    yield record
            heard = time.monotonic()

    def _at(self, number: int, offset: int) -> TopicPartition:
        return TopicPartition(self._topic, number, offset)

    def _wanted(self, message: Message) -> Record | None:
        number, offset, error = message.partition(), message.offset(), message.error()
        left = self._left.get(-1 if number is None else number)
        if left is None or number is None or offset is None:
            return None
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes are spelt so
                del self._left[number]
            else:
                self._log.error(error)
            return None
        # What was fetched before the consumer was told to go on elsewhere comes first, and then perhaps again.
        if offset < max(self._next[number], left[0].start):
            return None
        self._next[number] = offset + 1
        wanted = to_record(message) if offset < left[0].stop else None
        if offset + 1 >= left[0].stop:
            self._go_on(number, offset + 1)
        return wanted

    def _go_on(self, number: int, offset: int) -> None:
        """To the span that begins at the offset or later; the one that holds it was in part deleted from the topic."""
        left = self._left[number]
        while left and left[0].stop <= offset:
            left.popleft()
        if not left:
            del self._left[number]
            self._consumer.pause([self._at(number, offset)])
        elif left[0].start > offset:
            self._consumer.seek(self._at(number, left[0].start))
