"""An in-memory Kafka: topics, partitions, consumer groups, rebalances and commits, with nothing running behind.

For fast tests and deterministic ones. A rebalance happens inside the `poll` of the members it concerns: one gives
partitions up in its poll, then another takes them in its own, as with `cooperative-sticky`. `poll(timeout=0)` never
waits; with a timeout it waits in real time. The contract tests hold this twin and the real Kafka to the same behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pipeline.adapters.memory_group import MemoryGroup, MemoryJobConsumer
from pipeline.adapters.memory_log import MemoryLogs
from pipeline.core.clock import Clock
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import Delivered, KeyedValue, Outgoing, tell_end
from pipeline.errors import PayloadTooLarge, PipelineError, PublishFailed

__all__ = ["MemoryBroker", "MemoryJobConsumer", "MemoryJobProducer"]

logger = logging.getLogger("pipeline.kafka")


class MemoryBroker:
    """All topics and groups. Safe to use from several threads."""

    def __init__(self, clock: Clock, *, max_message_bytes: int = 1_048_576) -> None:
        self._logs = MemoryLogs(clock)
        self._groups: dict[str, MemoryGroup] = {}
        self._max_bytes = max_message_bytes

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Raises `ConfigError` when there is one of that name, or no partition is asked for."""
        with self._logs.changed:
            self._logs.create(name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Let a topic have `total` partitions; groups take the new ones up at their next polls."""
        with self._logs.changed:
            self._logs.grow(name, total)
            for group in self._groups.values():
                group.rebalance()

    def producer(self) -> MemoryJobProducer:
        return MemoryJobProducer(self._logs, max_message_bytes=self._max_bytes)

    def consumer(self, group: str) -> MemoryJobConsumer:
        """A new member; it joins when it subscribes."""
        with self._logs.changed:
            return MemoryJobConsumer(self._logs, self._groups.setdefault(group, MemoryGroup(self._logs)))

    def expire(self, member: MemoryJobConsumer) -> None:
        """End a member's session, as if it had been frozen: others take over, and it learns so at its next poll."""
        with self._logs.changed:
            member.expire()

    def refuse_writes(self, judge: Callable[[Outgoing], PipelineError | None]) -> None:
        """Ask `judge` before each write; what it returns is the error of that write. To play an outage."""
        with self._logs.changed:
            self._logs.refuse = judge

    def records(self, topic: str) -> list[Record]:
        """What a topic holds, partition by partition."""
        with self._logs.changed:
            return [
                record for partition in self._logs.partitions(topic) for record in self._logs.log(partition)
            ]

    def committed(self, group: str) -> dict[Partition, int]:
        """The offsets that a group has committed."""
        with self._logs.changed:
            return dict(self._groups[group].committed) if group in self._groups else {}


class MemoryJobProducer:
    """`JobProducer`. Callbacks are called before `send` returns, on the caller's thread."""

    def __init__(self, logs: MemoryLogs, *, max_message_bytes: int) -> None:
        self._logs = logs
        self._max_bytes = max_message_bytes
        self._closed = False

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        """See `JobProducer.send`."""
        if self._closed:
            raise PublishFailed(f"topic {record.topic} did not take the record: the producer is closed")
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"the record for topic {record.topic} has {size} bytes; allowed: at most {self._max_bytes}"
            )
        with self._logs.changed:
            delivered = self._logs.append(record)
        if on_delivery is None:
            return
        try:
            on_delivery(delivered)
        except Exception:
            # As with the real producer: the write has ended, and its caller's error is not the sender's.
            logger.exception("a delivery callback failed", extra={"action": "delivery_callback_failed"})

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        """See `JobProducer.send_all`."""
        ends: list[Delivered] = []
        for record in records:
            try:
                self.send(record, ends.append)
            except (PayloadTooLarge, PublishFailed) as error:
                ends.append(Delivered(None, error))
        return ends

    def send_many(
        self,
        topic: str,
        records: Sequence[KeyedValue],
        *,
        on_acknowledged: Callable[[], None],
        on_refused: Callable[[KeyedValue, Exception], None],
    ) -> None:
        """See `ManyProducer.send_many`."""
        ends = self.send_all([Outgoing(topic, key, value, []) for key, value in records])
        for record, delivered in zip(records, ends, strict=True):
            tell_end(record, on_acknowledged, on_refused, delivered)

    def flush(self, timeout: float) -> int:
        """See `JobProducer.flush`: there is never anything to wait for."""
        del timeout
        return 0

    def close(self) -> None:
        self._closed = True
