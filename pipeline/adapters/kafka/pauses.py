"""Which partitions of a consumer are to give nothing for the time being, and how that is done.

librdkafka throws away what it has fetched of a partition that is paused, and fetches it again once it is resumed: 0.2 to 0.6 s
passed until the next record came. Most pauses are shorter, because a worker with short jobs is soon through what it has. So when
all partitions are paused, the client is left alone at first, and keeps what it has; only after `PATIENCE` is it told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pipeline.core.offsets import Partition

__all__ = ["PATIENCE", "Pauses"]

PATIENCE = 0.5  # seconds for which the client may be left alone: rebalances wait for so long


class Pauses:
    """Pure: times are monotonic seconds, given by the caller, who tells the client."""

    def __init__(self) -> None:
        self._wanted: set[Partition] = set()
        self._told: set[Partition] = set()  # of those the client knows
        self._resting_since: float | None = None

    def pause(self, partitions: Iterable[Partition]) -> None:
        """To give nothing until they are resumed."""
        self._wanted.update(partitions)

    def resume(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Give those of which the client must be told."""
        resumed = set(partitions)
        self._wanted -= resumed
        told = self._told & resumed
        self._told -= told
        return sorted(told)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """A pause ends with the assignment."""
        self.resume(partitions)

    def resting(self, assigned: Collection[Partition], now: float) -> bool:
        """Whether the client is to be left alone for the moment."""
        waits = bool(assigned) and self._wanted.issuperset(assigned) and not self._told.issuperset(assigned)
        if not waits:
            self._resting_since = None
            return False
        if self._resting_since is None:
            self._resting_since = now
        return now - self._resting_since < PATIENCE

    def untold(self) -> list[Partition]:
        """Partitions that the client must be told to pause, before it is asked for records again."""
        untold = self._wanted - self._told
        self._told |= untold
        return sorted(untold)
