"""Reads a whole topic, outside any group: from a start to the ends as they were when reading began."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pipeline.adapters.kafka.config import Conf, construct
from pipeline.adapters.kafka.failures import ClientLog
from pipeline.adapters.kafka.metadata import partition_counts, watermarks
from pipeline.adapters.kafka.records import to_record
from pipeline.core.job import Record
from pipeline.errors import BrokerUnavailable, TopicsMissing

__all__ = ["KafkaReader"]

_BATCH = 1000
_POLL_SECONDS = 0.1


class KafkaReader:
    """`config` comes from `consumer_config` (its group is never joined); `timeout` bounds each wait, in seconds."""

    def __init__(self, config: Conf, *, timeout: float = 10.0) -> None:
        self._bootstrap: str = config["bootstrap.servers"]
        self._timeout = timeout
        # The end of a partition is told by an event: the last offset may be a transaction's marker, not a record.
        self._config: Conf = {**config, "enable.partition.eof": "true"}
        self._log = ClientLog()

    def read(self, topic: str, *, start: Mapping[int, int] | None = None) -> Iterator[Record]:
        """Every record from `start` (partition -> offset; the beginning for the others) to the present ends.

        Ordered within a partition. Records that arrive while reading are not given. Raises `TopicsMissing`,
        `BrokerUnavailable`.
        """
        consumer = construct(Consumer, self._config, self._log)
        try:
            ends = self._assign(consumer, topic, start or {})
            yield from self._until(consumer, ends)
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer, topic: str, start: Mapping[int, int]) -> dict[int, int]:
        """Start fetching; give the ends of those partitions that hold something."""
        counts = partition_counts(
            consumer, [topic], bootstrap=self._bootstrap, timeout=self._timeout, idle=True
        )
        if topic not in counts:
            raise TopicsMissing(f"topic {topic} does not exist; `pipeline topics apply` creates it")
        ends: dict[int, int] = {}
        assigned: list[TopicPartition] = []
        for number in range(counts[topic]):
            first, end = watermarks(
                consumer, TopicPartition(topic, number), bootstrap=self._bootstrap, timeout=self._timeout
            )
            position = max(first, start.get(number, first))
            if position < end:
                ends[number] = end
                assigned.append(TopicPartition(topic, number, position))
        consumer.assign(assigned)
        return ends

    def _until(self, consumer: Consumer, ends: dict[int, int]) -> Iterator[Record]:
        heard = time.monotonic()
        while ends:
            first = consumer.poll(_POLL_SECONDS)
            if first is None:
                if time.monotonic() - heard > self._timeout:
                    raise BrokerUnavailable(
                        f"Kafka at {self._bootstrap} sent nothing for {self._timeout:g} s"
                    )
                continue
            for message in (first, *consumer.consume(_BATCH, 0)):
                record = self._record(message, ends)
                if record is not None:
                    yield record
            heard = time.monotonic()

    def _record(self, message: Message, ends: dict[int, int]) -> Record | None:
        """The record, if it lies before the end; a partition that reached its end leaves `ends`."""
        number = message.partition()
        error = message.error()
        if number is None or number not in ends:
            return None
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes are spelt so
                del ends[number]
            else:
                self._log.error(error)
            return None
        record = to_record(message)
        if record.offset + 1 >= ends[number]:
            last = ends.pop(number)
            return record if record.offset < last else None
        return record
