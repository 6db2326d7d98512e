"""One worker, two members of its group: one reads the main topics, the other the retry topics.

The cooperative-sticky assignor, and the uniform one of KIP-848, balance the *number* of partitions of a member, whatever
their topics: among three workers that read one main and four retry topics one got 10 of the 12 main partitions and one
none. Members that read only main topics share them evenly. The range assignor would, too, but takes all partitions from
everybody at each rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import JobConsumer, RebalanceListener

__all__ = ["SplitConsumer"]

T = TypeVar("T")


class SplitConsumer:
    """A `JobConsumer` over two. `is_second` tells which topics the second one reads."""

    def __init__(self, first: JobConsumer, second: JobConsumer, *, is_second: Callable[[str], bool]) -> None:
        self._first = first
        self._second = second
        self._is_second = is_second
        self._kept: list[Record] = []

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        for consumer, own in self._each(topics, str):
            if own:
                consumer.subscribe(own, listener)

    def poll(self, max_records: int, timeout: float) -> list[Record]:
        """Wait for the first only: what the second has is taken along, so it waits `timeout` at the longest."""
        # Kept until they are given: were they dropped when the first one raises, their offsets would be passed over.
        self._kept = self._kept or self._second.poll(max_records, 0.0)
        records = self._first.poll(max_records, 0.0 if self._kept else timeout)
        kept, self._kept = self._kept, []
        return kept + records

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> bool:
        accepted = True
        for consumer, own in self._each(list(offsets), _topic):
            if (own or wait) and not consumer.commit({each: offsets[each] for each in own}, wait=wait):
                accepted = False
        return accepted

    def failed_commits(self) -> list[Partition]:
        return self._first.failed_commits() + self._second.failed_commits()

    def pause(self, partitions: Sequence[Partition]) -> None:
        for consumer, own in self._each(partitions, _topic):
            consumer.pause(own)

    def resume(self, partitions: Sequence[Partition]) -> None:
        for consumer, own in self._each(partitions, _topic):
            consumer.resume(own)

    def lag(self) -> dict[str, int]:
        return self._first.lag() | self._second.lag()

    def rejoin(self, partitions: Sequence[Partition]) -> None:
        """Only the member joins anew that has such a partition."""
        for consumer, own in self._each(partitions, _topic):
            if own:
                consumer.rejoin(own)

    def close(self) -> None:
        """Both leave, also when the first one's listener raises."""
        try:
            self._first.close()
        finally:
            self._second.close()

    def _each(self, items: Sequence[T], topic_of: Callable[[T], str]) -> list[tuple[JobConsumer, list[T]]]:
        return [
            (self._first, [item for item in items if not self._is_second(topic_of(item))]),
            (self._second, [item for item in items if self._is_second(topic_of(item))]),
        ]


def _topic(partition: Partition) -> str:
    return partition.topic
