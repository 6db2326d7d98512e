"""One asyncio loop, for handlers that are coroutine functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
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
    timed_out,
    to_call,
)
from pipeline.runtime.executors.deadlines import Deadlines

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with contextlib.suppress(ImportError):  # it is not made for every system
    import uvloop

    new_event_loop = uvloop.new_event_loop

__all__ = ["AsyncExecutor"]

CANCEL_GRACE = 5.0  # seconds that a cancelled handler gets to end
BLOCKED_SECONDS = 1.0  # without a turn of the loop: told
STUCK_SECONDS = 30.0  # the same: it is not coming back
_CANCELLED = (asyncio.CancelledError, TimeoutError)

log = logging.getLogger("pipeline.executor")


class _Flight:
    """A run and since when, by the clock and by the monotonic one; `overdue` once it was settled without its end.

    `expired` says that it was cancelled at its time limit.
    """

    __slots__ = ("began", "delivery", "expired", "overdue", "since", "task")

    def __init__(self, delivery: Delivery, since: float, began: float) -> None:
        self.delivery = delivery
        self.since = since
        self.began = began
        self.task: asyncio.Task[None] | None = None
        self.expired = self.overdue = False


class AsyncExecutor:
    """One event loop on one thread. A handler that overruns its time limit is cancelled.

    One that does not mind being cancelled, or that keeps the whole loop waiting, is settled as timed out all the same, and
    its slot is written off until it returns.
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
        self._slots = slots
        self._clock = clock
        self._contexts = contexts
        self._on_runs = on_runs
        self._on_room = on_room
        self._pace = Pace(slots, most=most_ahead)
        self._queue: deque[Delivery] = deque()
        self._flights: set[_Flight] = set()
        self._written_off = 0
        self._turn_asked = 0.0  # when the loop was asked for a turn that it has not made yet
        self._told_blocked = False
        self._limits_due = 0.0
        self._outstanding = 0
        self._ended: list[
            tuple[_Flight, Outcome | None, float]
        ] = []  # in this turn of the loop, and after what time
        self._lock = threading.Lock()
        self._abandoned = False

    def start(self) -> None:
        # Not before: a worker that does not get so far has none to close.
        self._loop = new_event_loop()
        self._context = contextvars.copy_context()
        self._deadlines = Deadlines(self._loop, self._expire)
        threading.Thread(target=self._turn_for_ever, name="handlers-async", daemon=True).start()

    def _turn_for_ever(self) -> None:
        while self._turn_until_interrupted():
            pass

    def _turn_until_interrupted(self) -> bool:
        """False when the loop was stopped. SystemExit in a task that a handler made ends its turns, and with it every job."""
        try:
            self._loop.run_forever()
        except BaseException:
            log.exception("a task of a handler tried to end the process", extra={"action": "exit_refused"})
            return True
        return False

    def capacity(self) -> int:
        with self._lock:
            return self._pace.room(self._outstanding, lost=self._written_off)

    def outstanding(self) -> int:
        return self._outstanding

    def submit(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            self._outstanding += len(deliveries)
            self._queue.extend(deliveries)
        self._loop.call_soon_threadsafe(self._start_some)

    def _start_some(self) -> None:
        for delivery in self._next():
            flight = _Flight(delivery, self._clock.time(), self._clock.monotonic())
            self._flights.add(flight)
            # In a context of its own: this may be called at the end of another job, in the midst of what its handler has set.
            flight.task = self._loop.create_task(self._run(flight), context=self._context.copy())

    def _next(self) -> list[Delivery]:
        """As many as there are free slots."""
        queue = self._queue
        with self._lock:  # or `drop_unstarted` could give one that starts here
            if self._abandoned:
                return []
            return [queue.popleft() for _ in range(min(self._slots - len(self._flights), len(queue)))]

    async def _run(self, flight: _Flight) -> None:
        delivery = flight.delivery
        handler, payload = to_call(delivery)
        limit = handler.job_type.timeout
        if limit is not None:
            self._deadlines.add(flight, limit)
        outcome: Outcome | None = SUCCEEDED
        try:
            await handler.call(payload, self._contexts(delivery))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            outcome = self._outcome(flight, error, limit or 0.0)
        if limit is not None:
            self._deadlines.remove(flight, limit)
        if not self._ended:
            self._loop.call_soon(self._end_turn)
        self._ended.append((flight, outcome, self._clock.monotonic() - flight.began))
        self._flights.discard(flight)
        self._start_some()  # at once: a turn of the loop may have to wait for the interpreter

    def _expire(self, flight: _Flight) -> None:
        flight.expired = True
        if flight.task is not None:
            flight.task.cancel()

    def _outcome(self, flight: _Flight, error: BaseException, limit: float) -> Outcome | None:
        """None when the worker gave the job up: it is not the job's fault, and costs no attempt."""
        delivery = flight.delivery
        if self._abandoned:  # however it puts it: it was cancelled from here
            return None
        if flight.expired and isinstance(error, _CANCELLED) and not delivery.committed:
            return timed_out(delivery, limit)
        return outcome_after(delivery, error)

    def _end_turn(self) -> None:
        """What ended in one turn of the loop goes on together: waking other threads for each would cost more than the jobs."""
        ended, self._ended = self._ended, []
        runs: list[Run] = []
        with self._lock:
            for flight, outcome, seconds in ended:
                overdue, flight.overdue = flight.overdue, True  # from here on it is nobody's to write off
                if overdue:
                    self._written_off -= 1
                    continue
                self._outstanding -= 1
                self._pace.ran(flight.delivery.job.job_type, seconds)
                if outcome is not None:
                    runs.append(Run(flight.delivery, outcome, flight.since, flight.since + seconds))
            room = self._pace.room(self._outstanding, lost=self._written_off)
        if runs:
            self._on_runs(runs)
        if room > 0:
            self._on_room()

    def check(self) -> None:
        """Time limits are the loop's own timers; here is what they cannot do."""
        self._check_turns()
        if self._clock.monotonic() >= self._limits_due:
            self._limits_due = self._clock.monotonic() + 1.0
            self._check_limits(self._clock.monotonic())

    def _check_limits(self, now: float) -> None:
        with self._lock:
            late = [flight for flight in list(self._flights) if _is_late(flight, now)]
            for flight in late:
                flight.overdue = True
            self._written_off += len(late)
            self._outstanding -= len(late)
        for flight in late:
            log.error(
                "handler was cancelled at its time limit and goes on; its slot is lost until it returns",
                extra={"action": "overdue", **_about(flight)},
            )
            seconds = now - flight.began
            # One that its own transaction has completed is completed, however long the handler stays on.
            outcome = SUCCEEDED if flight.delivery.committed else timed_out(flight.delivery, seconds)
            self._on_runs([Run(flight.delivery, outcome, flight.since, flight.since + seconds)])

    def _check_turns(self) -> None:
        if not self._turn_asked:
            self._told_blocked = False
            self._turn_asked = self._clock.monotonic()
            self._loop.call_soon_threadsafe(self._turn)
        elif self._blocked_for() > BLOCKED_SECONDS and not self._told_blocked:
            self._told_blocked = True
            task = asyncio.current_task(self._loop)
            flight = next((flight for flight in list(self._flights) if flight.task is task), None)
            log.error(
                "a handler blocks the event loop: no async handler goes on",
                extra={"action": "loop_blocked", **(_about(flight) if flight else {})},
            )

    def _turn(self) -> None:
        self._turn_asked = 0.0

    def _blocked_for(self) -> float:
        asked = self._turn_asked
        return self._clock.monotonic() - asked if asked else 0.0

    def trouble(self) -> str:
        if self._blocked_for() > STUCK_SECONDS:
            return f"the event loop has been blocked by a handler for {STUCK_SECONDS:g} s"
        if self._written_off * 2 > self._slots:
            return (
                f"{self._written_off} of {self._slots} async handlers overran their time limit and do not end"
            )
        return ""

    def drop_unstarted(self) -> list[Delivery]:
        with self._lock:
            dropped = list(self._queue)
            self._queue.clear()
            self._outstanding -= len(dropped)
            return dropped

    def abandon(self) -> int:
        with self._lock:
            self._abandoned = True
            self._queue.clear()
        ended = threading.Event()
        self._loop.call_soon_threadsafe(self._cancel_all, ended)
        ended.wait(1.0)
        return sum(not flight.overdue and not _is_over(flight) for flight in list(self._flights))

    def _cancel_all(self, ended: threading.Event) -> None:
        tasks = [flight.task for flight in self._flights if flight.task is not None]
        for task in tasks:
            task.cancel()
        gone = asyncio.gather(*tasks, return_exceptions=True)
        gone.add_done_callback(lambda _: ended.set())


def _is_over(flight: _Flight) -> bool:
    """One that was cancelled before it began never ends by itself."""
    return flight.task is not None and flight.task.done()


def _is_late(flight: _Flight, now: float) -> bool:
    handler = flight.delivery.handler
    limit = handler.job_type.timeout if handler else None
    return limit is not None and not flight.overdue and now - flight.began > limit + CANCEL_GRACE


def _about(flight: _Flight) -> dict[str, str]:
    job = flight.delivery.job
    return {"job_id": job.job_id, "job_type": job.job_type}
