"""Sends the moves of jobs to the events topic and to the log.

The moves of a job that follow each other within a moment travel in one record, keyed by job id: a job that is claimed and
done within the flush interval costs one record. An event is written after the move it tells of was stored, and offsets are
committed only once the events of their jobs are acknowledged: `seal` before, `acknowledged` after. After a crash in between
the record comes again, is recognised, and its job's last move is told once more. The trail may repeat itself; it has no gap.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pipeline.core.events import Move
from pipeline.core.ports import Delivered, JobProducer, Outgoing
from pipeline.errors import PipelineError

__all__ = ["EventSink"]

log = logging.getLogger("pipeline.events")

MOST_AGAIN = 50_000  # events kept while Kafka is away; a worker without Kafka gets no new jobs, so it never comes to that

Encode = Callable[[Sequence[Move]], bytes]


class EventSink:
    """Thread-safe. `encode` turns the moves of one job into a record's value; `write_log` writes lines."""

    def __init__(
        self,
        *,
        producer: JobProducer,
        topic: str,
        encode: Encode,
        write_log: Callable[[Sequence[Move]], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._encode = encode
        self._write_log = write_log
        self._changed = threading.Condition()
        self._open: dict[str, list[Move]] = {}  # of jobs that run
        self._again: list[tuple[int, Outgoing]] = []  # refused by Kafka, to be sent again
        self._period = 0
        self._unacknowledged: Counter[int] = Counter()  # by the period in which they were sent
        self._lost = 0

    def claimed(self, moves: Sequence[Move]) -> None:
        """Moves of jobs that are running now: they wait for the end of the run, or for the next `seal`."""
        with self._changed:
            for move in moves:
                self._open.setdefault(move.job_id, []).append(move)
        self._write_log(moves)

    def settled(self, moves: Sequence[Move]) -> None:
        """Moves that ended runs: sent now, with those of the claim if they still wait."""
        by_job: dict[str, list[Move]] = {}
        with self._changed:
            for move in moves:
                if move.job_id not in by_job:
                    by_job[move.job_id] = self._open.pop(move.job_id, [])
                by_job[move.job_id].append(move)
            period = self._period
        self._send(period, by_job)
        self._write_log(moves)

    def note(self, key: str, value: bytes) -> None:
        """Write an event that is not of a job."""
        with self._changed:
            period = self._period
        self._write(period, [Outgoing(self._topic, key.encode(), value, [])])

    def seal(self) -> int:
        """Send what still waits, and end a period; give its number for `acknowledged`."""
        with self._changed:
            waiting, self._open = self._open, {}
            again, self._again = self._again, []
            period = self._period
            self._period += 1
        for former, record in again:
            self._hand_over(former, record)
        self._send(period, waiting)
        return period

    def acknowledged(self, period: int, *, timeout: float = 0.0) -> bool:
        """Whether Kafka has everything of that period and those before; waits up to `timeout` seconds for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._oldest() > period, timeout)

    def _oldest(self) -> int:
        return min(self._unacknowledged, default=self._period)

    def _send(self, period: int, by_job: dict[str, list[Move]]) -> None:
        records = [
            Outgoing(self._topic, job_id.encode(), self._encode(moves), [])
            for job_id, moves in by_job.items()
        ]
        self._write(period, records)

    def _write(self, period: int, records: Sequence[Outgoing]) -> None:
        if records:
            with self._changed:
                self._unacknowledged[period] += len(records)
        for record in records:
            self._hand_over(period, record)

    def _hand_over(self, period: int, record: Outgoing) -> None:
        ended = partial(self._ended, period, record)
        try:
            self._producer.send(record, ended)
        except PipelineError as error:
            ended(Delivered(None, error))

    def _ended(self, period: int, record: Outgoing, delivered: Delivered) -> None:
        with self._changed:
            if delivered.error is not None and len(self._again) < MOST_AGAIN:
                self._again.append((period, record))
                return
            self._unacknowledged[period] -= 1
            if not self._unacknowledged[period]:
                del self._unacknowledged[period]
                self._changed.notify_all()
        if delivered.error is not None:
            self._lost += 1
            log.error(
                "event given up: %s", delivered.error, extra={"action": "event_lost", "lost": self._lost}
            )
