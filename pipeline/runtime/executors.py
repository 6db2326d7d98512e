"""Run handlers: a pool of threads, or one asyncio loop. Both take batches and give runs back one by one, at once.

How many jobs an executor takes ahead of its free slots follows from how long handlers take: enough to bridge the round
trip of the next claim (`AHEAD_SECONDS` of work), so that short jobs are claimed in large batches and long jobs just
before they start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.core.clock import Clock
from pipeline.core.outcome import Failed, Failure, Outcome, Succeeded, outcome_of
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.handlers import Context

__all__ = ["AsyncExecutor", "Executor", "Pace", "ThreadExecutor"]

log = logging.getLogger("pipeline.executor")

AHEAD_SECONDS = 0.02
OnRuns = Callable[[Sequence[Run]], None]


class Executor(Protocol):
    def capacity(self) -> int:
        """How many more jobs it wants now."""
        ...

    def submit(self, deliveries: Sequence[Delivery]) -> None: ...

    def outstanding(self) -> int:
        """Jobs taken and not given back."""
        ...

    def start(self) -> None: ...

    def drop_unstarted(self) -> list[Delivery]:
        """Stop starting jobs; give those that have not started."""
        ...

    def check(self) -> None:
        """Look after time limits and idle slots; called several times a second."""
        ...

    def abandon(self) -> int:
        """Cancel what still runs, as far as that can be done; give how many handlers may still be running."""
        ...


class Pace:
    """How many jobs may be outstanding: the slots, and what they finish in `AHEAD_SECONDS`."""

    def __init__(self, slots: int, *, most: int) -> None:
        self._slots = slots
        self._most = most
        self._seconds = 0.01  # moving average of a run, a cautious guess at first

    @property
    def seconds(self) -> float:
        return self._seconds

    def ran(self, seconds: float) -> None:
        self._seconds += (seconds - self._seconds) * 0.05

    def room(self, outstanding: int, *, lost: int = 0) -> int:
        """How many more to take now: when a slot is free, or half of what may be outstanding is done.

        Taking each place as it comes free would make claims of one job; waiting for half makes them large, and leaves no
        slot idle.
        """
        slots = self._slots - lost
        if slots <= 0:
            return 0
        allowed = slots + int(min(self._most, slots * AHEAD_SECONDS / max(self._seconds, 1e-6)))
        return max(0, allowed - outstanding) if outstanding < slots or outstanding * 2 <= allowed else 0


class _Slot:
    """A thread of the pool: what it runs and since when; `overdue` once that was settled without it."""

    __slots__ = ("delivery", "overdue", "since")

    def __init__(self) -> None:
        self.delivery: Delivery | None = None
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
        on_runs: OnRuns,
        on_room: Callable[[], None],
    ) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._clock = clock
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
                delivery = self._queue.popleft()
                slot.since = self._clock.time()
                slot.delivery = delivery
            self._run(slot, delivery)

    def _run(self, slot: _Slot, delivery: Delivery) -> None:
        started = slot.since
        outcome = call(delivery)
        ended = self._clock.time()
        with self._work:
            slot.delivery = None
            overdue, slot.overdue = slot.overdue, False
            if overdue:
                self._written_off -= 1
            else:
                self._outstanding -= 1
                self._pace.ran(ended - started)
            room = self._pace.room(self._outstanding, lost=self._written_off) > 0
        if overdue:
            log.warning(
                "handler returned after its time limit; its slot is back",
                extra={
                    "action": "overdue_returned",
                    "job_id": delivery.job.job_id,
                    "seconds": ended - started,
                },
            )
        else:
            self._on_runs([Run(delivery, outcome, started, ended)])
        if room:
            self._on_room()

    def check(self) -> None:
        now = self._clock.time()
        with self._work:
            late = [slot for slot in self._slots if self._late(slot, now)]
            runs = [self._write_off(slot, now) for slot in late]
            self._wake()
        if runs:
            self._on_runs(runs)

    def _late(self, slot: _Slot, now: float) -> bool:
        if slot.delivery is None or slot.overdue:
            return False
        handler = slot.delivery.handler
        limit = handler.job_type.timeout if handler else None
        return limit is not None and now - slot.since > limit

    def _write_off(self, slot: _Slot, now: float) -> Run:
        delivery = slot.delivery
        assert delivery is not None
        slot.overdue = True
        self._written_off += 1
        self._outstanding -= 1
        log.error(
            "handler overran its time limit; its slot is lost until it returns",
            extra={
                "action": "overdue",
                "job_id": delivery.job.job_id,
                "job_type": delivery.job.job_type,
                "slots_left": len(self._slots) - self._written_off,
            },
        )
        return Run(delivery, timed_out(delivery, now - slot.since), slot.since, now)

    def drop_unstarted(self) -> list[Delivery]:
        with self._work:
            dropped = list(self._queue)
            self._queue.clear()
            self._outstanding -= len(dropped)
            return dropped

    def abandon(self) -> int:
        """A thread cannot be stopped from outside."""
        with self._work:
            return sum(slot.delivery is not None for slot in self._slots)


def call(delivery: Delivery) -> Outcome:
    """Run a handler; whatever it raises becomes an outcome, nothing else escapes."""
    payload, handler = delivery.payload, delivery.handler
    assert payload is not None
    assert handler is not None
    try:
        handler.call(payload, Context(delivery.job, delivery.token))
    except BaseException as error:  # noqa: BLE001 - SystemExit in a handler must not end a slot
        return outcome_of(error, permanent=handler.job_type.permanent)
    return _SUCCEEDED


_SUCCEEDED = Succeeded()


def timed_out(delivery: Delivery, seconds: float) -> Failed:
    message = (
        f"the handler of {delivery.job.job_type} did not end within its time limit (ran {seconds:.1f} s)"
    )
    return Failed(Failure("TimeoutError", message))


class AsyncExecutor:
    """One event loop on one thread. A handler that overruns its time limit is cancelled."""

    def __init__(
        self,
        *,
        slots: int,
        most_ahead: int,
        clock: Clock,
        on_runs: OnRuns,
        on_room: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._on_runs = on_runs
        self._on_room = on_room
        self._pace = Pace(slots, most=most_ahead)
        self._queue: deque[Delivery] = deque()  # touched by the loop's thread only, but for `extend`
        self._tasks: set[asyncio.Task[None]] = set()
        self._outstanding = 0
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._abandoned = False

    def start(self) -> None:
        threading.Thread(target=self._loop.run_forever, name="handlers-async", daemon=True).start()

    def capacity(self) -> int:
        with self._lock:
            return self._pace.room(self._outstanding)

    def outstanding(self) -> int:
        return self._outstanding

    def submit(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            self._outstanding += len(deliveries)
            self._queue.extend(deliveries)
        self._loop.call_soon_threadsafe(self._start_some)

    def _start_some(self) -> None:
        while len(self._tasks) < self._slots:
            try:
                delivery = self._queue.popleft()
            except IndexError:
                return
            task = self._loop.create_task(self._run(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start_some()

    async def _run(self, delivery: Delivery) -> None:
        started = self._clock.time()
        outcome = await self._call(delivery)
        ended = self._clock.time()
        with self._lock:
            self._outstanding -= 1
            self._pace.ran(ended - started)
            room = self._pace.room(self._outstanding) > 0
        if outcome is not None:
            self._on_runs([Run(delivery, outcome, started, ended)])
        if room:
            self._on_room()

    async def _call(self, delivery: Delivery) -> Outcome | None:
        """None when the worker gave the job up: it is not the job's fault, and costs no attempt."""
        payload, handler = delivery.payload, delivery.handler
        assert payload is not None
        assert handler is not None
        limit = handler.job_type.timeout
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                await handler.call(payload, Context(delivery.job, delivery.token))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            if self._abandoned and isinstance(error, asyncio.CancelledError):
                return None
            if deadline.expired() and isinstance(error, TimeoutError):
                return timed_out(delivery, limit or 0.0)
            return outcome_of(error, permanent=handler.job_type.permanent)
        return _SUCCEEDED

    def check(self) -> None:
        """Time limits are the loop's own timers."""

    def drop_unstarted(self) -> list[Delivery]:
        with self._lock:
            dropped = list(self._queue)
            self._queue.clear()
            self._outstanding -= len(dropped)
            return dropped

    def abandon(self) -> int:
        self._abandoned = True
        ended = threading.Event()
        self._loop.call_soon_threadsafe(self._cancel_all, ended)
        ended.wait(1.0)
        return len(self._tasks)

    def _cancel_all(self, ended: threading.Event) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        gone = asyncio.gather(*tasks, return_exceptions=True)
        gone.add_done_callback(lambda _: ended.set())
