"""Which partitions have made no progress for a while, though they are assigned and nobody has paused them.

That alone is no fault: a partition may be empty. It makes them worth a look from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.core.offsets import Partition

__all__ = ["Progress", "StuckWatch"]


class Progress(NamedTuple):
    """How far an assignment of a partition has come.

    `position` is one beyond the last record received, None before the first; `unfinished` counts received records that are
    not done.
    """

    epoch: int
    position: int | None
    unfinished: int


class StuckWatch:
    """Not thread-safe: its owner guards it. Times are monotonic."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[Partition, tuple[Progress, float]] = {}

    def observe(self, seen: Mapping[Partition, Progress], now: float) -> None:
        """Take note of all partitions that should make progress; one that is left out is not watched any more."""
        known = self._since
        self._since = {
            partition: known[partition]
            if partition in known and known[partition][0] == progress
            else (progress, now)
            for partition, progress in seen.items()
        }

    def suspects(self, now: float) -> dict[Partition, Progress]:
        """Those without progress for as long as the patience lasts."""
        return {
            partition: progress
            for partition, (progress, since) in self._since.items()
            if now - since >= self._patience
        }

    def clear(self, partitions: Iterable[Partition], now: float) -> None:
        """These have nothing to make progress with: their time begins anew."""
        for partition in partitions:
            if partition in self._since:
                self._since[partition] = (self._since[partition][0], now)
