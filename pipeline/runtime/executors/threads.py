"""A pool of threads, for handlers that are plain functions."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pipeline.core.clock import Clock
from pipeline.core.outcome import Outcome
from pipeline.core.quick import new_tuple
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.executors.base import (
    SUCCEEDED,
    Contexts,
    OnRuns,
    Pace,
    outcome_after,
    refuse_unstarted,
    timed_out,
    to_call,
)

__all__ = ["ThreadExecutor"]

log = logging.getLogger("pipeline.executor")

THREAD_WORTH: Final = 0.001  # seconds of work that are worth waking a thread for
SHORT: Final = 0.0005  # seconds of a job that one may wait for before its forerunner's end is given on
KEPT: Final = 64  # ends that are given on together, at most
LONG: Final = 0.01  # seconds after which a running job is not a short one


class _Slot:
    """A thread of the pool: what it runs (nothing, a job, or a batch) and since when, by the monotonic clock.

    It is `overdue` once that was settled without it. `ended` are runs that were not given on yet.
    """

    __slots__ = ("ended", "overdue", "running", "since")

    def __init__(self) -> None:
        self.running: list[Delivery] = []
        self.since = 0.0
        self.overdue = False
        self.ended: list[Run] = []


class ThreadExecutor:
    """A pool of daemon threads around one queue: a thread that wakes works until the queue is empty.

    Threads are woken for the work that is there, not one per job: a single thread gets through a batch of short jobs
    faster than many that pass the interpreter around. For the same reason a thread takes the lock once between two jobs,
    and gives the ends of short jobs on a few at a time. A handler that overruns its time limit cannot be stopped: its job
    is settled as timed out, and its thread is written off until the handler returns.
    """

    def __init__(
        self,
        *,
        slots: int,
        most_ahead: int,
        clock: Clock,
        contexts: Contexts,
        on_runs: OnRuns,
        on_room: Callable[[], None],
    ) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._clock = clock
        self._contexts = contexts
        self._on_runs = on_runs
        self._on_room = on_room
        self._pace = Pace(slots, most=most_ahead)
        self._queue: deque[Delivery] = deque()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # told when there is something in the queue
        self._idle = 0
        self._outstanding = 0
        self._written_off = 0
        self._told_room = False

    def start(self) -> None:
        for number, slot in enumerate(self._slots):
            threading.Thread(target=self._loop, args=(slot,), name=f"handler-{number}", daemon=True).start()

    def capacity(self) -> int:
        with self._lock:
            return self._pace.room(self._outstanding, lost=self._written_off)

    def outstanding(self) -> int:
        return self._outstanding

    def submit(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            self._told_room = False
            self._outstanding += len(deliveries)
            self._queue.extend(deliveries)
            self._wake(1 + int(sum(self._pace.of(d.job.job_type) for d in deliveries) / THREAD_WORTH))

    def _wake(self, wanted: int) -> None:
        if self._queue and self._idle:
            self._work.notify(min(self._idle, wanted, len(self._queue)))

    def _loop(self, slot: _Slot) -> None:
        batch = self._wait(slot)
        while True:
            outcomes = self._call(batch)
            batch = self._turn(slot, outcomes, self._clock.monotonic()) or self._wait(slot)

    def _wait(self, slot: _Slot) -> list[Delivery]:
        with self._lock:
            while not self._queue:
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            return self._start_next(slot, self._clock.monotonic())

    def _turn(self, slot: _Slot, outcomes: Sequence[Outcome], now: float) -> list[Delivery]:
        """Account for what ended and take what is next, empty when nothing is."""
        with self._lock:
            self._account(slot, outcomes, now)
            following = self._start_next(slot, now) if self._queue else []
            keep = following and len(slot.ended) < KEPT and self._pace.of(following[0].job.job_type) < SHORT
            ended = [] if keep else self._give_on(slot)
            room = not self._told_room and self._pace.room(self._outstanding, lost=self._written_off) > 0
            self._told_room = self._told_room or room
        if ended:
            self._on_runs(ended)
        if room:
            self._on_room()
        return following

    def _account(self, slot: _Slot, outcomes: Sequence[Outcome], now: float) -> None:
        batch, seconds = slot.running, now - slot.since
        slot.running = []
        if slot.overdue:
            slot.overdue = False
            self._written_off -= 1
            self._tell_returned(batch, seconds)
            return
        self._outstanding -= len(batch)
        self._pace.ran(batch[0].job.job_type, seconds / len(batch))
        # The clock may have been set meanwhile: the run took as long as the monotonic one says.
        ended = self._clock.time()
        slot.ended += [
            new_tuple(Run, (delivery, outcome, ended - seconds, ended))
            for delivery, outcome in zip(batch, outcomes, strict=True)
        ]

    def _start_next(self, slot: _Slot, now: float) -> list[Delivery]:
        """The first job, with those behind it that its handler takes along."""
        queue = self._queue
        first = queue.popleft()
        handler = first.handler
        batch = [first]
        if handler is not None and handler.batch_size > 1:
            while queue and len(batch) < handler.batch_size and queue[0].handler is handler:
                batch.append(queue.popleft())
        slot.running, slot.since = batch, now
        if queue and self._pace.of(first.job.job_type) > THREAD_WORTH:
            self._wake(1)  # this thread is gone for a while
        return batch

    @staticmethod
    def _give_on(slot: _Slot) -> list[Run]:
        ended, slot.ended = slot.ended, []
        return ended

    def check(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            late = [slot for slot in self._slots if self._late(slot, now)]
            runs = [run for slot in late for run in self._write_off(slot, now - slot.since)]
            long = [slot for slot in self._slots if slot.running and now - slot.since > LONG]
            for slot in long:  # what was to be a short job holds up the ends of those before it
                runs += self._give_on(slot)
            self._wake(1 + len(long))
        if runs:
            self._on_runs(runs)

    @staticmethod
    def _tell_returned(batch: Sequence[Delivery], seconds: float) -> None:
        log.warning(
            "handler returned after its time limit; its slot is back",
            extra={
                "action": "overdue_returned",
                "job_id": batch[0].job.job_id,
                "jobs": len(batch),
                "seconds": seconds,
            },
        )

    def _late(self, slot: _Slot, now: float) -> bool:
        if not slot.running or slot.overdue:
            return False
        handler = slot.running[0].handler
        limit = handler.job_type.timeout if handler else None
        return limit is not None and now - slot.since > limit

    def _write_off(self, slot: _Slot, seconds: float) -> list[Run]:
        slot.overdue = True
        self._written_off += 1
        self._outstanding -= len(slot.running)
        first = slot.running[0].job
        log.error(
            "handler overran its time limit; its slot is lost until it returns",
            extra={
                "action": "overdue",
                "job_id": first.job_id,
                "job_type": first.job_type,
                "jobs": len(slot.running),
                "slots_left": len(self._slots) - self._written_off,
            },
        )
        ended = self._clock.time()
        return [
            # One that its own transaction has completed is completed, however long the handler stays on.
            Run(d, SUCCEEDED if d.committed else timed_out(d, seconds), ended - seconds, ended)
            for d in slot.running
        ]

    def drop_unstarted(self) -> list[Delivery]:
        with self._lock:
            dropped = list(self._queue)
            self._queue.clear()
            self._outstanding -= len(dropped)
            return dropped

    def trouble(self) -> str:
        """Half a worker would hold its partitions and do little."""
        lost, slots = self._written_off, len(self._slots)
        if lost * 2 <= slots:
            return ""
        return f"{lost} of {slots} threads are lost to handlers that overran their time limit"

    def abandon(self) -> int:
        """A thread cannot be stopped from outside, only kept from the next job. Those written off hold no job any more."""
        with self._lock:
            self._queue.clear()
            ended = [run for slot in self._slots for run in self._give_on(slot)]
            running = sum(len(slot.running) for slot in self._slots if not slot.overdue)
        if ended:
            self._on_runs(ended)
        return running

    def _call(self, batch: list[Delivery]) -> list[Outcome]:
        """Run a handler; whatever it raises becomes an outcome, nothing else escapes."""
        handler, payload = to_call(batch[0])
        try:
            if handler.call_batch is None:
                given = handler.call(payload, self._contexts(batch[0]))
                if given is not None:
                    refuse_unstarted(given)
                return [SUCCEEDED]
            payloads = [to_call(delivery)[1] for delivery in batch]
            errors = handler.call_batch(payloads, [self._contexts(delivery) for delivery in batch])
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler must not end a slot
            return [outcome_after(delivery, error) for delivery in batch]
        return [
            SUCCEEDED if error is None else outcome_after(delivery, error)
            for delivery, error in zip(batch, errors, strict=True)
        ]
