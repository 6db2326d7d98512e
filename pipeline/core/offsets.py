"""Which offsets may be committed: per assigned partition, what was received and what of it is done.

The committed offset of a partition is one beyond the longest run of done records, counted over the records that were
*received*: gaps in the log (compaction, transaction markers) need no care. Each assignment of a partition has an epoch
of its own; results that come back with an older epoch belong to a lost assignment and are dropped, because Kafka would
accept a commit from a former owner and let the offset fall.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MOST_GAPS", "Gap", "OffsetTracker", "Partition"]

MOST_GAPS = 10_000


class Partition(NamedTuple):
    """A topic and a partition number."""

    topic: str
    number: int


class Gap(NamedTuple):
    """Between two records that came one after the other: offsets from `start` to before `end` were not there to be read.

    Markers of transactions, aborted records and compaction leave gaps, and so does retention that overtakes the reader.
    """

    partition: Partition
    start: int
    end: int


class _Tracked:
    """One assignment of one partition."""

    __slots__ = ("committed", "done", "epoch", "next_offset", "pending")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.pending: deque[int] = deque()  # received, in order, from the first that is not done
        self.done: set[int] = set()  # done, but behind one that is not
        self.next_offset: int | None = None  # what may be committed
        self.committed: int | None = None  # what was handed out for committing


class OffsetTracker:
    """All assigned partitions of one consumer. Not thread-safe: its owner guards it."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, _Tracked] = {}
        self._epochs = 0
        self._gaps: deque[Gap] = deque(maxlen=MOST_GAPS)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Start new epochs. A partition that is assigned already keeps its own."""
        for partition in partitions:
            if partition not in self._partitions:
                self._epochs += 1
                self._partitions[partition] = _Tracked(self._epochs)

    def begin(self, partition: Partition, offset: int) -> None:
        """Give a group that has committed nothing in an assigned partition its first place, unless work was done there since."""
        tracked = self._partitions.get(partition)
        if tracked is not None and tracked.next_offset is None:
            tracked.next_offset = offset

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that were revoked or lost: nothing of them is committed from here on."""
        for partition in partitions:
            self._partitions.pop(partition, None)

    def assigned(self) -> list[Partition]:
        return list(self._partitions)

    def epoch(self, partition: Partition) -> int:
        """The epoch of the present assignment; 0 when there is none."""
        tracked = self._partitions.get(partition)
        return tracked.epoch if tracked else 0

    def received(self, partition: Partition, offset: int) -> int:
        """Note a record and give the epoch to carry with it; 0 when the partition is not assigned.

        A record that was received before in this epoch (the consumer was rewound) is not noted twice, and one that was
        left out then is put in its place.
        """
        tracked = self._partitions.get(partition)
        if tracked is None:
            return 0
        pending = tracked.pending
        if offset < (tracked.next_offset or 0):
            return tracked.epoch  # done before: noted again, it would let the offset fall
        expected = pending[-1] + 1 if pending else tracked.next_offset
        if expected is None or offset >= expected:
            pending.append(offset)
            if expected is not None and offset > expected:
                self._gaps.append(Gap(partition, expected, offset))
        elif pending[at := bisect_left(pending, offset)] != offset:
            pending.insert(at, offset)
        return tracked.epoch

    def take_gaps(self) -> list[Gap]:
        """Those since the last call, the latest 10,000 of them."""
        gaps = list(self._gaps)
        self._gaps.clear()
        return gaps

    def done(self, partition: Partition, offset: int, epoch: int) -> bool:
        """Note that a record needs no more work. False when its epoch is over, and nothing is noted."""
        tracked = self._partitions.get(partition)
        if tracked is None or tracked.epoch != epoch:
            return False
        pending, done = tracked.pending, tracked.done
        if pending and pending[0] == offset:
            pending.popleft()
            tracked.next_offset = offset + 1
            while pending and pending[0] in done:
                following = pending.popleft()
                done.discard(following)
                tracked.next_offset = following + 1
        elif pending and offset > pending[0]:
            done.add(offset)
        return True

    def unfinished(self, partition: Partition) -> int:
        """How many received records of the partition are not done."""
        tracked = self._partitions.get(partition)
        return len(tracked.pending) - len(tracked.done) if tracked else 0

    def position(self, partition: Partition) -> int | None:
        """One beyond the last record that was received in this assignment; before the first one what `begin` said, or None."""
        tracked = self._partitions.get(partition)
        if tracked is None:
            return None
        return tracked.pending[-1] + 1 if tracked.pending else tracked.next_offset

    def beyond(self, partition: Partition) -> int:
        """How many records were received from the first one on that is not done: what would come again after a crash."""
        tracked = self._partitions.get(partition)
        return len(tracked.pending) if tracked else 0

    def take_commits(self, only: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Next offsets that are ready and were not handed out before."""
        chosen = (
            self._partitions
            if only is None
            else {p: self._partitions[p] for p in only if p in self._partitions}
        )
        commits: dict[Partition, int] = {}
        for partition, tracked in chosen.items():
            if tracked.next_offset is not None and tracked.next_offset != tracked.committed:
                tracked.committed = tracked.next_offset
                commits[partition] = tracked.next_offset
        return commits

    def commit_failed(self, partitions: Iterable[Partition]) -> None:
        """Hand the offsets out again next time: computed anew, never sent again as they were."""
        for partition in partitions:
            tracked = self._partitions.get(partition)
            if tracked is not None:
                tracked.committed = None
