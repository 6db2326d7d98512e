"""Notices jobs that their topic deletes, or has deleted, before they ran. Loud, and never a silent jump.

Before the worker joins its group: a topic that would delete waiting jobs is refused. At each assignment, before the first record is
read: where the group's next record is gone, that is told and counted, and reading goes on at the first one that is left. A group
that has no place in a partition yet is given one, at its first record: else nobody could tell later what it has lost. While the
worker reads: a client whose next record was deleted goes on at the first one that is left, without a word; it is told by the gap.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pipeline.core.metrics import Metrics
from pipeline.core.offsets import MOST_GAPS, Gap, Partition
from pipeline.core.plan import TopicState
from pipeline.core.ports import RebalanceListener
from pipeline.core.retention import Kept, Loss, losses, overtaken, too_short, worth_a_warning
from pipeline.errors import BrokerUnavailable, TopicsError, TopicsMissing

__all__ = ["Logs", "RetentionWatch"]

_LOOK_EVERY = 5.0  # seconds

log = logging.getLogger("pipeline.retention")


class Logs(Protocol):
    """What must be asked of the cluster. Raises `BrokerUnavailable`, `TopicsError`."""

    def describe(self, topics: Sequence[str]) -> dict[str, TopicState]: ...

    def kept(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, Kept]: ...


class RetentionWatch:
    """A `RebalanceListener` around another; `loop` runs on a thread of its own until `stop`.

    `gaps` gives those in what was read since it was last asked. `waits` are seconds that jobs may wait in a topic, by its name;
    None for main topics.
    """

    def __init__(
        self,
        inner: RebalanceListener,
        *,
        logs: Logs,
        group: str,
        queue: str,
        waits: Mapping[str, float | None],
        outage: float,
        begin: Callable[[Mapping[Partition, int]], None],
        gaps: Callable[[], Sequence[Gap]],
        metrics: Metrics,
    ) -> None:
        self._inner = inner
        self._logs = logs
        self._group = group
        self._queue = queue
        self._waits = waits
        self._outage = outage
        self._begin = begin
        self._gaps = gaps
        self._unjudged: list[Gap] = []
        self._stopped = threading.Event()
        self._metrics = metrics

    def check(self) -> None:
        """Raises `TopicsError` for a topic that would delete waiting jobs, and `BrokerUnavailable`."""
        states = self._logs.describe(list(self._waits))
        refusals = [
            refusal
            for topic, state in states.items()
            if (refusal := too_short(state, wait=self._waits[topic], outage=self._outage))
        ]
        if refusals:
            raise TopicsError("; ".join(refusals))
        for state in states.values():
            if warning := worth_a_warning(state):
                log.warning("%s", warning, extra={"action": "retention", "topic": state.name})

    def on_assigned(self, partitions: Sequence[Partition]) -> None:
        fresh: Mapping[Partition, int] = {}
        try:
            fresh = self._look(partitions)
        except (BrokerUnavailable, TopicsError, TopicsMissing) as error:
            log.warning(
                "whether records have expired is not known: %s", error, extra={"action": "retention_unknown"}
            )
        self._inner.on_assigned(partitions)
        self._begin(fresh)

    def _look(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """Tell what is gone; give the first record of each partition in which the group has no place."""
        found = self._logs.kept(self._group, partitions)
        for loss in losses(found):
            self._tell(loss)
        return {partition: kept.start for partition, kept in found.items() if kept.committed is None}

    def _tell(self, loss: Loss) -> None:
        topic, number = loss.partition
        log.log(
            logging.CRITICAL if loss.records else logging.WARNING,
            "%s",
            loss.sentence,
            extra={"action": "expired", "topic": topic, "partition": number, "records": loss.records},
        )
        if loss.records:
            kind = "main" if self._waits[topic] is None else "retry"
            self._metrics.expired(self._queue, kind, loss.records)

    def loop(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY):
            self.look_back()

    def look_back(self) -> None:
        """Judge the gaps in what was read; those that nobody can judge now wait for the next time."""
        gaps = self._unjudged = [*self._unjudged, *self._gaps()][-MOST_GAPS:]
        if not gaps:
            return
        try:
            found = self._logs.kept(self._group, sorted({gap.partition for gap in gaps}))
        except (BrokerUnavailable, TopicsError, TopicsMissing) as error:
            log.warning("gaps cannot be judged: %s", error, extra={"action": "retention_unknown"})
            return
        self._unjudged = []
        for loss in overtaken(gaps, {partition: kept.start for partition, kept in found.items()}):
            self._tell(loss)

    def stop(self) -> None:
        self._stopped.set()

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        self._inner.on_revoked(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        self._inner.on_lost(partitions)
