"""Sends the moves of jobs to the events topic and to the log.

The moves of a job that follow each other within a moment travel in one record, keyed by job id: a job that is claimed and
done within the flush interval costs one record. An event is written after the move it tells of was stored, and offsets are
committed only once the events of their jobs are acknowledged: `seal` before, `acknowledged` after. After a crash in between
the record comes again, is recognised, and its job's last move is told once more. The trail may repeat itself; it has no gap.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from mypy_extensions import mypyc_attr

from pipeline.core.events import Trail
from pipeline.core.ports import KeyedValue, ManyProducer

__all__ = ["EventSink"]

log = logging.getLogger("pipeline.events")

MOST_AGAIN = 50_000  # events kept while Kafka is away; a worker without Kafka gets no new jobs, so it never comes to that

Encode = Callable[[Trail], bytes]


class _Period:
    """The events sent between two seals: how many, and how many of them need no more waiting.

    Counting an end takes no lock, as it happens for every job: `acknowledged` grows on the producer's thread alone, the others
    under the lock of the sink.
    """

    __slots__ = ("acknowledged", "given_up", "sealed", "sent")

    def __init__(self) -> None:
        self.sent = self.given_up = self.acknowledged = 0
        self.sealed = False

    def complete(self) -> bool:
        return self.sealed and self.acknowledged + self.given_up >= self.sent


@mypyc_attr(allow_interpreted_subclasses=True)
class EventSink:
    """Thread-safe. `encode` turns the moves of one job into a record's value; `write_log` writes lines."""

    def __init__(
        self,
        *,
        producer: ManyProducer,
        topic: str,
        encode: Encode,
        write_log: Callable[[Sequence[Trail]], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._encode = encode
        self._write_log = write_log
        self._changed = threading.Condition()
        self._open: dict[str, Trail] = {}  # of jobs that run
        self._again: list[tuple[_Period, KeyedValue]] = []  # refused by Kafka, to be sent again
        self._period = _Period()
        self._sealed: deque[tuple[int, _Period]] = deque()  # not known to be acknowledged, by number
        self._number = 0
        self._lost = 0

    def claimed(self, trails: Sequence[Trail]) -> None:
        """Moves of jobs that are running now: they wait for the end of the run, or for the next `seal`."""
        with self._changed:
            for trail in trails:
                _add(self._open, trail)
        self._write_log(trails)

    def settled(self, trails: Sequence[Trail]) -> None:
        """Moves that ended runs: sent now, with those of the claim if they still wait."""
        told: dict[str, Trail] = {}
        with self._changed:
            for trail in trails:
                claimed = self._open.pop(trail.job.job_id, None)
                if claimed is not None:
                    _add(told, claimed)
                _add(told, trail)
            period = self._period
            period.sent += len(told)
        self._send(period, told)
        self._write_log(trails)

    def note(self, key: str, value: bytes) -> None:
        """Write an event that is not of a job."""
        with self._changed:
            period = self._period
            period.sent += 1
        self._hand_over(period, [(key.encode(), value)])

    def seal(self) -> int:
        """Send what still waits, and end a period; give its number for `acknowledged`."""
        with self._changed:
            waiting, self._open = self._open, {}
            again, self._again = self._again, []
            period, number = self._period, self._number
            period.sent += len(waiting)
            self._sealed.append((number, period))
            self._period, self._number = _Period(), number + 1
        for former, record in again:
            self._hand_over(former, [record])
        self._send(period, waiting)
        period.sealed = True
        return number

    def acknowledged(self, number: int, *, timeout: float = 0.0) -> bool:
        """Whether Kafka has everything of that period and those before; waits up to `timeout` seconds for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._oldest() > number, timeout)

    def _oldest(self) -> int:
        while self._sealed and self._sealed[0][1].complete():
            self._sealed.popleft()
        return self._sealed[0][0] if self._sealed else self._number

    def _send(self, period: _Period, told: dict[str, Trail]) -> None:
        encode = self._encode
        self._hand_over(period, [(job_id.encode(), encode(trail)) for job_id, trail in told.items()])

    def _hand_over(self, period: _Period, records: Sequence[KeyedValue]) -> None:
        def acknowledged() -> None:
            period.acknowledged += 1
            if period.complete():
                self._tell()

        def refused(record: KeyedValue, error: Exception) -> None:
            with self._changed:
                if len(self._again) < MOST_AGAIN:
                    self._again.append((period, record))
                    return
                period.given_up += 1
                self._lost += 1
                self._changed.notify_all()
            log.error("event given up: %s", error, extra={"action": "event_lost", "lost": self._lost})

        if records:
            self._producer.send_many(self._topic, records, on_acknowledged=acknowledged, on_refused=refused)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _add(trails: dict[str, Trail], trail: Trail) -> None:
    """Behind what is there of the same job. The log is told of what was given: that stays as it is."""
    job_id = trail.job.job_id
    before = trails.get(job_id)
    trails[job_id] = trail if before is None else before.followed_by(trail)
