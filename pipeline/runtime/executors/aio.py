"""One asyncio loop, for handlers that are coroutine functions."""

from __future__ import annotations

import asyncio
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


class AsyncExecutor:
    """One event loop on one thread. A handler that overruns its time limit is cancelled."""

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
        handler, payload = to_call(delivery)
        limit = handler.job_type.timeout
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                await handler.call(payload, self._contexts(delivery))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            if self._abandoned and isinstance(error, asyncio.CancelledError):
                return None
            if deadline.expired() and isinstance(error, TimeoutError):
                return timed_out(delivery, limit or 0.0)
            return outcome_after(delivery, error)
        return SUCCEEDED

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
