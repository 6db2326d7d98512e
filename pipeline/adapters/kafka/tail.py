"""A topic that stays open: read to its present end, then again when there may be more. Outside any group."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipeline.adapters.kafka.config import Conf, construct
from pipeline.adapters.kafka.failures import ClientLog, unavailable
from pipeline.adapters.kafka.metadata import partition_counts
from pipeline.adapters.kafka.records import to_record
from pipeline.core.job import Record
from pipeline.errors import BrokerUnavailable, TopicsMissing

__all__ = ["BEGINNING", "KafkaTail", "ReadFrom"]

_BATCH = 1000
_POLL_SECONDS = 0.1


class ReadFrom(NamedTuple):
    """Where reading begins: at the ends, at an offset, at a time (epoch seconds). `partition` leaves all others out."""

    kind: Literal["beginning", "end", "offset", "time"]
    value: float = 0.0
    partition: int | None = None


BEGINNING = ReadFrom("beginning")


class KafkaTail:
    """`config` comes from `consumer_config` (its group is never joined); `timeout` bounds each wait, in seconds.

    Nothing is connected before the first read. Not thread-safe.
    """

    def __init__(
        self, config: Conf, topic: str, *, timeout: float = 10.0, start: ReadFrom = BEGINNING
    ) -> None:
        self._topic = topic
        self._bootstrap: str = config["bootstrap.servers"]
        self._timeout = timeout
        self._start = start
        # The end of a partition is told by an event: the last offset may be a transaction's marker, not a record.
        self._config: Conf = {**config, "enable.partition.eof": "true"}
        self._log = ClientLog()
        self._consumer: Consumer | None = None
        self._closing: weakref.finalize[[], KafkaTail] | None = None
        self._positions: dict[int, int] = {}

    def read_new(self) -> Iterator[Record]:
        """What lies between the last record given and the ends as they are now, and what comes meanwhile.

        Raises `TopicsMissing`, `BrokerUnavailable`.
        """
        consumer = self._open()
        ends = {number: self._bounds(consumer, number)[1] for number in self._positions}
        if any(end < self._positions[number] for number, end in ends.items()):
            self.close()  # the topic was deleted and made anew
            yield from self.read_new()
            return
        heard = time.monotonic()
        while any(self._positions[number] < end for number, end in ends.items()):
            # One first: asked for many, the client would wait the whole time for so many to come.
            first = consumer.poll(_POLL_SECONDS)
            if first is not None:
                yield from self._records([first, *consumer.consume(_BATCH, 0)])
                heard = time.monotonic()
            elif time.monotonic() - heard > self._timeout:
                raise BrokerUnavailable(f"Kafka at {self._bootstrap} sent nothing for {self._timeout:g} s")

    def wait(self, timeout: float) -> list[Record]:
        """Wait up to `timeout` seconds for more. Raises like `read_new`, but not while Kafka is away."""
        consumer = self._open()
        first = consumer.poll(timeout)
        return [] if first is None else list(self._records([first, *consumer.consume(_BATCH, 0)]))

    def close(self) -> None:
        """Let go of the connection. Happens by itself at the end of the process."""
        if self._closing is not None:
            self._closing()
        self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is not None:
            return self._consumer
        consumer = construct(Consumer, self._config, self._log)
        closing = weakref.finalize(self, consumer.close)
        try:
            self._positions = self._starts(consumer)
        except BaseException:
            closing()
            raise
        consumer.assign([TopicPartition(self._topic, *place) for place in self._positions.items()])
        self._consumer, self._closing = consumer, closing
        return consumer

    def _starts(self, consumer: Consumer) -> dict[int, int]:
        counts = partition_counts(
            consumer, [self._topic], bootstrap=self._bootstrap, timeout=self._timeout, idle=True
        )
        if self._topic not in counts:
            raise TopicsMissing(f"topic {self._topic} does not exist; `pipeline topics apply` creates it")
        only = self._start.partition
        numbers = [number for number in range(counts[self._topic]) if only in (None, number)]
        if not numbers:
            raise TopicsMissing(
                f"topic {self._topic} has no partition {only}; allowed: 0 to {counts[self._topic] - 1}"
            )
        return {number: self._start_of(consumer, number) for number in numbers}

    def _start_of(self, consumer: Consumer, number: int) -> int:
        first, end = self._bounds(consumer, number)
        if self._start.kind == "beginning":
            return first
        if self._start.kind == "end":
            return end
        if self._start.kind == "offset":
            return min(max(first, int(self._start.value)), end)
        asked = TopicPartition(self._topic, number, round(self._start.value * 1000))
        try:
            (found,) = consumer.offsets_for_times([asked], timeout=self._timeout)
        except KafkaException as error:
            raise unavailable(self._bootstrap, self._timeout, error) from None
        return found.offset if found.offset >= 0 else end

    def _bounds(self, consumer: Consumer, number: int) -> tuple[int, int]:
        try:
            bounds: tuple[int, int] = consumer.get_watermark_offsets(
                TopicPartition(self._topic, number), timeout=self._timeout
            )
        except KafkaException as error:
            raise unavailable(self._bootstrap, self._timeout, error) from None
        return bounds

    def _records(self, messages: Iterable[Message]) -> Iterator[Record]:
        for message in messages:
            number, offset, error = message.partition(), message.offset(), message.error()
            if error is None:
                record = to_record(message)
                self._positions[record.partition] = record.offset + 1
                yield record
            elif error.code() == KafkaError._PARTITION_EOF and number is not None and offset is not None:  # noqa: SLF001 - librdkafka's own codes are spelt so
                self._positions[number] = max(self._positions[number], offset)
            else:
                self._log.error(error)
