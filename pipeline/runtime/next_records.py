"""Writes the next records of runs, each by itself: no run waits for another's record.

A record that no topic takes because it is too large is parked in the store, whole; a small letter in the DLQ refers to it. Any
other record that is refused is tried again for as long as it takes: its job is held, and its offset is not passed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from pipeline.core.decision import DeadLetter, Decision, RunLater
from pipeline.core.job import Source
from pipeline.core.outcome import Failure, describe_failure
from pipeline.core.parked import ParkedRecord
from pipeline.core.ports import Delivered, JobProducer, Outgoing, Parking
from pipeline.core.state import Trigger
from pipeline.errors import PayloadTooLarge, PipelineError, StoreUnavailable
from pipeline.runtime.delivery import Delivery, Run

__all__ = ["NextRecords", "Unsettled"]

log = logging.getLogger("pipeline.settle")


class Unsettled:
    """A run that is being settled: its decision, the next record until that is acknowledged, and why it was not yet.

    `on_the_way` is for the settle thread: the write was left to itself. `stuck` says that a write was refused. `letter` is a
    dead letter and where it lies, once that is acknowledged.
    """

    __slots__ = ("decision", "error", "letter", "next_record", "on_the_way", "run", "stuck", "tries")

    def __init__(self, run: Run, decision: Decision, next_record: Outgoing | None) -> None:
        self.run = run
        self.decision = decision
        self.next_record = next_record
        self.error: Exception | None = None
        self.letter: tuple[Outgoing, Source] | None = None
        self.tries = 0
        self.on_the_way = False
        self.stuck = False

    @property
    def too_large(self) -> bool:
        return isinstance(self.error, PayloadTooLarge)


class _Write:
    """A record on its way. Whoever comes second, its end or the one who started it, goes on with the run."""

    def __init__(self, item: Unsettled, on_late: Callable[[Unsettled], None]) -> None:
        self._item = item
        self._on_late = on_late
        self._lock = threading.Lock()
        self._ended = self._left = False

    def end(self, delivered: Delivered) -> None:
        """May be called by a thread of the producer."""
        item = self._item
        item.error = delivered.error
        if delivered.source is not None and item.next_record and isinstance(item.decision, DeadLetter):
            item.letter = (item.next_record, delivered.source)
        if delivered.error is None:
            item.next_record = None
        with self._lock:
            self._ended = True
            is_late = self._left
        if is_late:
            self._on_late(self._item)

    def leave(self) -> bool:
        """Wait no longer; False when it has ended already."""
        with self._lock:
            self._left = not self._ended
            return self._left


class NextRecords:
    """`write` and `arrived` are called by one thread.

    `letter_of` makes the small letter for a parked record; without `parking` one that is too large is tried again like any other.
    `on_arrival` is called, from any thread, when there is something to ask `arrived` for.
    """

    def __init__(
        self,
        *,
        producer: JobProducer,
        letter_of: Callable[[Delivery, DeadLetter], Outgoing],
        parking: Parking | None,
        on_arrival: Callable[[], None],
    ) -> None:
        self._producer = producer
        self._letter_of = letter_of
        self._parking = parking
        self._on_arrival = on_arrival
        self._late: queue.SimpleQueue[Unsettled] = queue.SimpleQueue()
        self._on_the_way = 0

    def write(self, items: Sequence[Unsettled]) -> tuple[list[Unsettled], list[Unsettled]]:
        """Start what must be written. Give the runs that have nothing more to write, and those whose record was refused.

        Those under way are in neither: `arrived` gives them when their write has ended.
        """
        ready: list[Unsettled] = []
        refused: list[Unsettled] = []
        for item in items:
            # One that is on its way may be anybody's by now: it is not looked at again.
            if item.next_record is None or self._write(item):
                (ready if item.next_record is None else refused).append(item)
        if refused:
            self._tell(refused)
        return ready, refused

    def arrived(self) -> list[Unsettled]:
        """Runs whose write has ended since the last call, well or not."""
        found: list[Unsettled] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._late.get_nowait())
        self._on_the_way -= len(found)
        for item in found:
            item.on_the_way = False
        return found

    def on_the_way(self) -> int:
        return self._on_the_way

    def _write(self, item: Unsettled) -> bool:
        """Start a write; True when it has ended already. A record that is too large is parked, and its letter written."""
        if item.too_large and not self._park(item):
            return True
        ended = self._start(item)
        if ended and item.too_large and self._park(item):
            return self._start(item)
        return ended

    def _start(self, item: Unsettled) -> bool:
        record = item.next_record
        assert record is not None
        item.error = None
        item.tries += 1
        write = _Write(item, self._arrive)
        try:
            self._producer.send(record, write.end)
        except PipelineError as error:  # refused before it left
            item.error = error
            return True
        item.on_the_way = write.leave()
        self._on_the_way += item.on_the_way
        return not item.on_the_way

    def _arrive(self, item: Unsettled) -> None:
        self._late.put(item)
        self._on_arrival()

    def _park(self, item: Unsettled) -> bool:
        """Keep the record as it was fetched, and let a small letter be the next one. False when that is not to be had now."""
        if self._parking is None:
            return False
        delivery, decision = item.run.delivery, _parked_decision(item)
        try:
            self._parking.park(ParkedRecord(delivery.job, delivery.record, decision.reason))
        except StoreUnavailable as error:
            log.warning("cannot park a record: %s", error, extra={"action": "parking_failed"})
            return False
        log.error(
            "record parked, it is too large for its topic: %s",
            item.error,
            extra={"action": "parked", "job_id": delivery.job.job_id, "job_type": delivery.job.job_type},
        )
        item.decision = decision
        item.next_record = self._letter_of(delivery, decision)
        item.error = None
        return True

    def _tell(self, refused: Sequence[Unsettled]) -> None:
        """One line for all that were refused for the same reason."""
        reasons = Counter(str(item.error) for item in refused)
        for reason, count in reasons.items():
            (example,) = [item for item in refused if str(item.error) == reason][:1]
            log.error(
                "next records not written, their jobs are held and tried again: %s",
                reason,
                extra={
                    "action": "next_record_failed",
                    "records": count,
                    "job_id": example.run.delivery.job.job_id,
                },
            )


def _parked_decision(item: Unsettled) -> DeadLetter:
    """A job whose retry no topic takes is dead; one that was dying dies of what it died of."""
    decision, error = item.decision, item.error
    if isinstance(decision, DeadLetter):
        return decision
    failure = decision.failure if isinstance(decision, RunLater) else None
    if failure is None:
        failure = describe_failure(error) if error is not None else Failure("PayloadTooLarge", "")
    return DeadLetter("too_large", failure, (Trigger.ERROR, Trigger.REJECTED))
