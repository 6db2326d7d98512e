"""A pool of threads, for handlers that are plain functions."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from pipeline.core.clock import Clock
from pipeline.core.outcome import Outcome
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


class _Slot:
    """A thread of the pool: what it runs (nothing, a job, or a batch) and since when, by the monotonic clock.

    It is `overdue` once that was settled without it.
    """

    __slots__ = ("overdue", "running", "since")

    def __init__(self) -> None:
        self.running: list[Delivery] = []
        self.since = 0.0
        self.overdue = False


class ThreadExecutor:
    """A pool of daemon threads around one queue: a thread that wakes works until the queue is empty.

    Threads are woken for the work that is there, not one per job: a single thread gets through a batch of short jobs
    faster than many that pass the interpreter around. A handler that overruns its time limit cannot be stopped: its job
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
        self._work = threading.Condition()
        self._idle = 0
        self._outstanding = 0
        self._written_off = 0

    def start(self) -> None:
        for number, slot in enumerate(self._slots):
            threading.Thread(target=self._loop, args=(slot,), name=f"handler-{number}", daemon=True).start()

    def capacity(self) -> int:
        with self._work:
            return self._pace.room(self._outstanding, lost=self._written_off)

    def outstanding(self) -> int:
        return self._outstanding

    def submit(self, deliveries: Sequence[Delivery]) -> None:
        with self._work:
            self._outstanding += len(deliveries)
            self._queue.extend(deliveries)
            self._wake()

    def _wake(self) -> None:
        """Wake as many idle threads as have at least a millisecond of work each, but one at least."""
        wanted = 1 + int(len(self._queue) * self._pace.seconds / 0.001)
        if self._queue and self._idle:
            self._work.notify(min(self._idle, wanted, len(self._queue)))

    def _loop(self, slot: _Slot) -> None:
        while True:
            with self._work:
                while not self._queue:
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                slot.running = self._next()
                slot.since = self._clock.monotonic()
            self._run(slot, slot.running)

    def _next(self) -> list[Delivery]:
        """The first job, with those behind it that its handler takes along."""
        queue = self._queue
        first = queue.popleft()
        handler = first.handler
        batch = [first]
        if handler is not None and handler.batch_size > 1:
            while queue and len(batch) < handler.batch_size and queue[0].handler is handler:
                batch.append(queue.popleft())
        return batch

    def _run(self, slot: _Slot, batch: list[Delivery]) -> None:
        outcomes = self._call(batch)
        seconds = self._clock.monotonic() - slot.since
        with self._work:
            slot.running = []
            overdue, slot.overdue = slot.overdue, False
            if overdue:
                self._written_off -= 1
            else:
                self._outstanding -= len(batch)
                self._pace.ran(seconds / len(batch))
            room = self._pace.room(self._outstanding, lost=self._written_off) > 0
        if overdue:
            log.warning(
                "handler returned after its time limit; its slot is back",
                extra={
                    "action": "overdue_returned",
                    "job_id": batch[0].job.job_id,
                    "jobs": len(batch),
                    "seconds": seconds,
                },
            )
        else:
            # The clock may have been set meanwhile: the run took as long as the monotonic one says.
            ended = self._clock.time()
            self._on_runs(
                [
                    Run(delivery, outcome, ended - seconds, ended)
                    for delivery, outcome in zip(batch, outcomes, strict=True)
                ]
            )
        if room:
            self._on_room()

    def check(self) -> None:
        now = self._clock.monotonic()
        with self._work:
            late = [slot for slot in self._slots if self._late(slot, now)]
            runs = [run for slot in late for run in self._write_off(slot, now - slot.since)]
            self._wake()
        if runs:
            self._on_runs(runs)

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
        with self._work:
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
        with self._work:
            self._queue.clear()
            return sum(len(slot.running) for slot in self._slots if not slot.overdue)

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
