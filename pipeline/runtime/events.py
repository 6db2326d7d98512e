"""Sends the moves of jobs to the events topic and to the log.

The moves of a job that follow each other within a moment travel in one record, keyed by job id: a job that is claimed and
done within the flush interval costs one record. An event is written after the move it tells of was stored; Postgres is
the truth, and `flush` is called before offsets are committed, so that a crash repeats the job's record, not its silence.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from pipeline.core.events import Move
from pipeline.core.ports import Delivered, JobProducer, Outgoing
from pipeline.errors import PipelineError

__all__ = ["EventSink"]

log = logging.getLogger("pipeline.events")

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
        self._lock = threading.Lock()
        self._open: dict[str, list[Move]] = {}
        self._lost = 0

    def claimed(self, moves: Sequence[Move]) -> None:
        """Moves of jobs that are running now: they wait for the end of the run, or for the next `flush`."""
        with self._lock:
            for move in moves:
                self._open.setdefault(move.job_id, []).append(move)
        self._write_log(moves)

    def settled(self, moves: Sequence[Move]) -> None:
        """Moves that ended runs: sent now, with those of the claim if they still wait."""
        by_job: dict[str, list[Move]] = {}
        with self._lock:
            for move in moves:
                if move.job_id not in by_job:
                    by_job[move.job_id] = self._open.pop(move.job_id, [])
                by_job[move.job_id].append(move)
        self._send(by_job)
        self._write_log(moves)

    def flush(self) -> None:
        """Send what still waits, of jobs that run for longer."""
        with self._lock:
            waiting, self._open = self._open, {}
        self._send(waiting)

    def _send(self, by_job: dict[str, list[Move]]) -> None:
        for job_id, moves in by_job.items():
            record = Outgoing(self._topic, job_id.encode(), self._encode(moves), [])
            try:
                self._producer.send(record, self._delivered)
            except PipelineError as error:
                self._delivered(Delivered(None, error))

    def _delivered(self, delivered: Delivered) -> None:
        if delivered.error is not None:
            self._lost += 1
            log.error(
                "event not written: %s", delivered.error, extra={"action": "event_lost", "lost": self._lost}
            )
