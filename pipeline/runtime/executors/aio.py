"""One asyncio loop, for handlers that are coroutine functions."""

from __future__ import annotations

import asyncio
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

__all__ = ["AsyncExecutor"]

CANCEL_GRACE = 5.0  # seconds that a cancelled handler gets to end
BLOCKED_SECONDS = 1.0  # without a turn of the loop: told
STUCK_SECONDS = 30.0  # the same: it is not coming back

log = logging.getLogger("pipeline.executor")


class _Flight:
    """A run and since when, by the clock and by the monotonic one; `overdue` once it was settled without its end."""

    __slots__ = ("began", "delivery", "overdue", "since")

    def __init__(self, delivery: Delivery, since: float, began: float) -> None:
        self.delivery = delivery
        self.since = since
        self.began = began
        self.overdue = False


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
        self._tasks: dict[asyncio.Task[None], _Flight] = {}
        self._written_off = 0
        self._turn_asked = 0.0  # when the loop was asked for a turn that it has not made yet
        self._told_blocked = False
        self._limits_due = 0.0
        self._outstanding = 0
        self._runs: list[Run] = []  # that ended in this turn of the loop
        self._lock = threading.Lock()
        self._abandoned = False

    def start(self) -> None:
        # Not before: a worker that does not get so far has none to close.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._turn_for_ever, name="handlers-async", daemon=True).start()

    def _turn_for_ever(self) -> None:
        stopped = False
        while not stopped:
            try:
                self._loop.run_forever()
                stopped = True
            except (
                BaseException
            ):  # SystemExit in a task that a handler made stops the loop, and with it every job
                log.exception(
                    "a task of a handler tried to end the process", extra={"action": "exit_refused"}
                )

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
        while len(self._tasks) < self._slots:
            with self._lock:  # or `drop_unstarted` could give one that starts here
                if self._abandoned or not self._queue:
                    return
                delivery = self._queue.popleft()
            flight = _Flight(delivery, self._clock.time(), self._clock.monotonic())
            task = self._loop.create_task(self._run(flight))
            self._tasks[task] = flight
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._start_some()

    async def _run(self, flight: _Flight) -> None:
        delivery, started = flight.delivery, flight.since
        outcome = await self._call(delivery)
        ended = started + self._clock.monotonic() - flight.began
        with self._lock:
            overdue, flight.overdue = flight.overdue, True  # from here on it is nobody's to write off
            if overdue:
                self._written_off -= 1
            else:
                self._outstanding -= 1
                self._pace.ran(delivery.job.job_type, ended - started)
        if not self._runs:
            self._loop.call_soon(self._give_on)
        if outcome is not None and not overdue:
            self._runs.append(Run(delivery, outcome, started, ended))

    def _give_on(self) -> None:
        """What ended in one turn of the loop goes on together: waking other threads for each would cost more than the jobs."""
        ended, self._runs = self._runs, []
        if ended:
            self._on_runs(ended)
        if self.capacity() > 0:
            self._on_room()

    async def _call(self, delivery: Delivery) -> Outcome | None:
        """None when the worker gave the job up: it is not the job's fault, and costs no attempt."""
        handler, payload = to_call(delivery)
        limit = handler.job_type.timeout
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                await handler.call(payload, self._contexts(delivery))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            if self._abandoned:  # however it puts it: it was cancelled from here
                return None
            if deadline.expired() and isinstance(error, TimeoutError) and not delivery.committed:
                return timed_out(delivery, limit or 0.0)
            return outcome_after(delivery, error)
        return SUCCEEDED

    def check(self) -> None:
        """Time limits are the loop's own timers; here is what they cannot do."""
        self._check_turns()
        if self._clock.monotonic() >= self._limits_due:
            self._limits_due = self._clock.monotonic() + 1.0
            self._check_limits(self._clock.monotonic())

    def _check_limits(self, now: float) -> None:
        with self._lock:
            late = [flight for flight in list(self._tasks.values()) if _is_late(flight, now)]
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
            flight = self._tasks.get(task) if task else None
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
        return sum(not flight.overdue for flight in list(self._tasks.values()))

    def _cancel_all(self, ended: threading.Event) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        gone = asyncio.gather(*tasks, return_exceptions=True)
        gone.add_done_callback(lambda _: ended.set())


def _is_late(flight: _Flight, now: float) -> bool:
    handler = flight.delivery.handler
    limit = handler.job_type.timeout if handler else None
    return limit is not None and not flight.overdue and now - flight.began > limit + CANCEL_GRACE


def _about(flight: _Flight) -> dict[str, str]:
    job = flight.delivery.job
    return {"job_id": job.job_id, "job_type": job.job_type}
