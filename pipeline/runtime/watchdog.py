"""Finds partitions that are stuck: assigned, not paused, records are there, and none comes.

A client library can lose a partition between two rebalances: everything looks well, and its jobs wait for ever. The poll
thread tells each second how far every partition has come; for one without progress a thread of its own asks Kafka, by
another client, whether there is a record to be had. If there is, the worker says so and joins the group anew, on the poll
thread. If the same record is still not received after that, the worker fails, for its supervisor to start another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pipeline.core.clock import Clock
from pipeline.core.metrics import Metrics
from pipeline.core.offsets import Partition
from pipeline.core.ports import JobConsumer, Probe
from pipeline.core.stuck import Progress, StuckWatch
from pipeline.errors import PartitionStuck, PipelineError

__all__ = ["Watchdog"]

log = logging.getLogger("pipeline.watchdog")


class _Rejoined(NamedTuple):
    """For which record, and when."""

    offset: int
    at: float


class Watchdog:
    """`step` is called on the poll thread, `loop` runs on a thread of its own until `stop`.

    `progress` tells of the partitions that should make some. `patience` is in seconds.
    """

    def __init__(
        self,
        *,
        consumer: JobConsumer,
        progress: Callable[[], Mapping[Partition, Progress]],
        probe: Probe,
        metrics: Metrics,
        queue: str,
        clock: Clock,
        patience: float,
    ) -> None:
        self._consumer = consumer
        self._progress = progress
        self._probe = probe
        self._metrics = metrics
        self._queue = queue
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._watch = StuckWatch(patience)
        self._found: dict[Partition, int] = {}  # the record that is there, by partition
        self._rejoined: dict[Partition, _Rejoined] = {}
        self._stopped = threading.Event()

    def step(self) -> None:
        """Note progress; join the group anew when a partition was found stuck.

        Raises `PartitionStuck` when that was done for the same record before, and whatever joining raises.
        """
        seen, now = self._progress(), self._clock.monotonic()
        with self._lock:
            self._watch.observe(seen, now)
            suspects = self._watch.suspects(now)
            stuck = {p: offset for p, offset in self._found.items() if p in suspects}
            self._found = {}
        self._rejoined = {p: one for p, one in self._rejoined.items() if self._lasts(p, one, seen, now)}
        if stuck:
            self._on_stuck(stuck, now)

    def _lasts(
        self, partition: Partition, rejoined: _Rejoined, seen: Mapping[Partition, Progress], now: float
    ) -> bool:
        """Whether it is not known yet if joining anew has helped. One that went elsewhere is not ours to watch."""
        if partition not in seen:
            return now - rejoined.at < 2 * self._patience
        position = seen[partition].position
        return position is None or position <= rejoined.offset

    def _on_stuck(self, stuck: Mapping[Partition, int], now: float) -> None:
        names = [f"{p.topic}/{p.number}@{offset}" for p, offset in sorted(stuck.items())]
        log.error(
            "partitions are stuck: there are records, and for %g s none has come",
            self._patience,
            extra={"action": "partitions_stuck", "records": names},
        )
        self._metrics.partitions_stuck(self._queue, len(stuck))
        again = [
            p for p, offset in stuck.items() if p in self._rejoined and self._rejoined[p].offset == offset
        ]
        if again:
            raise PartitionStuck(
                f"partitions are stuck also after joining the group anew: {', '.join(names)}"
            )
        self._rejoined.update({p: _Rejoined(offset, now) for p, offset in stuck.items()})
        self._consumer.rejoin(list(stuck))
        log.warning("joined the group anew", extra={"action": "rejoined", "records": names})

    def finding(self) -> str:
        """For people: what is wrong; empty when nothing is known to be."""
        names = sorted(f"{p.topic}/{p.number}" for p in list(self._rejoined))
        return f"nothing comes from {', '.join(names)}, though there are records" if names else ""

    def loop(self) -> None:
        while not self._stopped.wait(self._patience / 4):
            self.look()

    def look(self) -> None:
        """Ask Kafka about partitions without progress."""
        with self._lock:
            suspects = self._watch.suspects(self._clock.monotonic())
        if not suspects:
            return
        try:
            found = self._probe.readable({p: progress.position for p, progress in suspects.items()})
        except PipelineError as error:  # an outage: no partition of ours is stuck, all are
            log.warning("cannot look for stuck partitions: %s", error, extra={"action": "probe_failed"})
            return
        with self._lock:
            self._watch.clear(suspects.keys() - found.keys(), self._clock.monotonic())
            self._found = found

    def stop(self) -> None:
        self._stopped.set()
