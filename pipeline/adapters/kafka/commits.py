"""Which commits were sent and not answered yet.

The client sends a commit again when its connection breaks. With a newer one sent meanwhile it would arrive as the last, and
Kafka would let the offset fall: so a partition has one commit under way at a time. And what is under way is no longer to be
told from what is kept, to those who compute the next commit: the last one before a partition goes must send it once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.core.offsets import Partition

__all__ = ["ANSWER_SECONDS", "CommitsUnderWay"]

ANSWER_SECONDS = 60.0  # what librdkafka gives a request; then its answer is not waited for any more


class _Sent(NamedTuple):
    offset: int
    at: float


class CommitsUnderWay:
    """Pure: times are monotonic seconds, given by the caller, who sends the commits."""

    def __init__(self) -> None:
        self._sent: dict[Partition, _Sent] = {}

    def sent(self, offsets: Mapping[Partition, int], now: float) -> None:
        """Nobody waits for these."""
        for partition, offset in offsets.items():
            self._sent[partition] = _Sent(offset, now)

    def answered(self, partitions: Iterable[Partition]) -> None:
        """Accepted or refused; also for partitions that have gone, whose answer is not looked at."""
        for partition in partitions:
            self._sent.pop(partition, None)

    def busy(self, partitions: Iterable[Partition], now: float) -> list[Partition]:
        """Those that must wait for the answer to an earlier commit."""
        return [p for p in partitions if p in self._sent and now - self._sent[p].at < ANSWER_SECONDS]

    def with_last(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """`offsets`, and what else is not known to be kept: of each partition the furthest."""
        last = {partition: sent.offset for partition, sent in self._sent.items()}
        return last | {
            partition: max(offset, last.get(partition, 0)) for partition, offset in offsets.items()
        }
