"""Which partitions a worker has, how far each has come, and what of it may be committed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from mypy_extensions import mypyc_attr

from pipeline.core.offsets import Gap, OffsetTracker, Partition
from pipeline.core.stuck import Progress
from pipeline.runtime.delivery import Delivery

__all__ = ["Assignments"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Assignments:
    """The side of a buffer that commits look at. Thread-safe; whoever builds on it uses the same lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tracker = OffsetTracker()

    def begin(self, places: Mapping[Partition, int]) -> None:
        """Have these offsets committed where the group has committed nothing yet."""
        with self._lock:
            for partition, offset in places.items():
                self._tracker.begin(partition, offset)

    def take_gaps(self) -> list[Gap]:
        with self._lock:
            return self._tracker.take_gaps()

    def assigned(self) -> list[Partition]:
        with self._lock:
            return self._tracker.assigned()

    def current(self, delivery: Delivery) -> bool:
        """Whether the assignment that the delivery came in still lasts."""
        with self._lock:
            return self._tracker.epoch(delivery.partition) == delivery.epoch

    def take_commits(self, only: Iterable[Partition] | None = None) -> dict[Partition, int]:
        with self._lock:
            return self._tracker.take_commits(only)

    def commit_failed(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            self._tracker.commit_failed(partitions)

    def progress(self) -> dict[Partition, Progress]:
        """How far each assigned partition has come."""
        with self._lock:
            tracker = self._tracker
            return {
                p: Progress(tracker.epoch(p), tracker.position(p), tracker.unfinished(p))
                for p in tracker.assigned()
            }

    def far_ahead(self, most: int) -> set[Partition]:
        """Partitions in which more than `most` records were received from the first unfinished one on."""
        with self._lock:
            return {p for p in self._tracker.assigned() if self._tracker.beyond(p) > most}
