"""A look from outside at partitions that seem to be stuck, by a client that shares nothing with the worker's own."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from pipeline.adapters.kafka.config import Conf, construct
from pipeline.adapters.kafka.failures import ClientLog, logger, unavailable
from pipeline.core.offsets import Partition

__all__ = ["KafkaProbe"]

_POLL_SECONDS = 0.1
_OF_MEMBERS = ("group.protocol", "group.instance.id", "group.remote.assignor")


class KafkaProbe:
    """`Probe`. `config` comes from `consumer_config`; its group is asked for offsets and never joined."""

    def __init__(self, config: Conf, *, timeout: float = 10.0) -> None:
        self._bootstrap: str = config["bootstrap.servers"]
        self._timeout = timeout
        own = {key: value for key, value in config.items() if key not in _OF_MEMBERS}
        # The end of a partition is told by an event: beyond it there may be markers of transactions, but no record.
        self._config: Conf = {**own, "enable.partition.eof": "true", "queued.max.messages.kbytes": "1024"}

    def readable(self, positions: Mapping[Partition, int | None]) -> dict[Partition, int]:
        """See `Probe.readable`. Bounded by the timeout; a partition that does not answer in time is left out."""
        consumer = construct(Consumer, self._config, ClientLog())
        try:
            consumer.assign(self._starts(consumer, positions))
            return self._first_records(consumer, set(positions))
        except KafkaException as error:
            raise unavailable(self._bootstrap, self._timeout, error) from None
        finally:
            consumer.close()

    def _starts(self, consumer: Consumer, positions: Mapping[Partition, int | None]) -> list[TopicPartition]:
        unknown = [
            TopicPartition(*partition) for partition, position in positions.items() if position is None
        ]
        committed = consumer.committed(unknown, timeout=self._timeout) if unknown else []
        starts = [
            TopicPartition(*partition, position)
            for partition, position in positions.items()
            if position is not None
        ]
        for each in committed:
            start = each.offset if each.offset >= 0 else OFFSET_BEGINNING
            starts.append(TopicPartition(each.topic, each.partition, start))
        return starts

    def _first_records(self, consumer: Consumer, unheard: set[Partition]) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        deadline = time.monotonic() + self._timeout
        while unheard and time.monotonic() < deadline:
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            partition = Partition(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None and partition in unheard:
                found[partition] = message.offset() or 0
                consumer.pause([TopicPartition(*partition)])
            if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - spelt so
                unheard.discard(partition)
        if unheard:
            logger.warning("no answer about %s", sorted(unheard), extra={"action": "probe_failed"})
        return found
