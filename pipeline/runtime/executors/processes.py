"""A pool of child processes: for handlers that keep a core busy, and for jobs that may kill the process they run in.

Each child runs one job at a time, watched by a thread of the worker. So a child that dies proves which job did it: that is
the job's own crash, counted by the store. A handler that overruns its time limit is killed with its child.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.core.clock import Clock
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.executors.base import OnRuns, Pace
from pipeline.runtime.executors.orders import limit_of, order_for, outcome_of_ending
from pipeline.runtime.executors.remote import Answered, ChildBroken, ChildProcess, Unstarted

__all__ = ["PoolSettings", "ProcessExecutor", "SuspectExecutor"]

log = logging.getLogger("pipeline.executor")

MOST_FAILURES = 5  # children that could not be used, in a row: the worker cannot do this work
BACKOFF_SECONDS = 0.5


class PoolSettings(NamedTuple):
    """`jobs_per_child` is when a child is replaced. `idle` seconds without work end a child; None keeps all, from the start."""

    slots: int
    most_ahead: int
    jobs_per_child: int
    idle: float | None = None


class ProcessExecutor:
    """See the module. `new_child` starts a process; `alive` is whether the worker's lease holds."""

    _name = "process"

    def __init__(
        self,
        settings: PoolSettings,
        *,
        new_child: Callable[[], ChildProcess],
        clock: Clock,
        alive: Callable[[], bool],
        on_runs: OnRuns,
        on_room: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._new_child = new_child
        self._clock = clock
        self._alive = alive
        self._on_runs = on_runs
        self._on_room = on_room
        self._pace = Pace(settings.slots, most=settings.most_ahead)
        self._work = threading.Condition()
        self._one_at_a_time = threading.Lock()
        self._queue: deque[Delivery] = deque()
        self._children: set[ChildProcess] = set()
        self._threads: list[threading.Thread] = []
        self._ready = self._idle = self._starting = self._outstanding = 0
        self._failures = 0
        self._trouble = ""
        self._ended = False

    # --- what the worker asks

    def start(self) -> None:
        for number in range(self._settings.slots):
            thread = threading.Thread(target=self._guarded_loop, name=f"{self._name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def capacity(self) -> int:
        with self._work:
            return self._pace.room(self._outstanding, lost=self._settings.slots - self._ready)

    def outstanding(self) -> int:
        return self._outstanding

    def submit(self, deliveries: Sequence[Delivery]) -> None:
        with self._work:
            self._outstanding += len(deliveries)
            self._queue.extend(deliveries)
            self._work.notify_all()

    def check(self) -> None:
        """Time limits are looked after by the thread of each child."""

    def trouble(self) -> str:
        return self._trouble

    def drop_unstarted(self) -> list[Delivery]:
        with self._work:
            dropped = list(self._queue)
            self._queue.clear()
            self._outstanding -= len(dropped)
            return dropped

    def abandon(self) -> int:
        """Every child ends: at once if it has a job, which costs that job no attempt."""
        with self._work:
            self._ended = True
            self._queue.clear()
            busy = [child for child in self._children if child.busy]
            self._work.notify_all()
        for child in busy:
            child.kill()
        for thread in self._threads:
            thread.join()
        return 0

    # --- the thread of a child

    def _guarded_loop(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            log.critical("a thread of the pool fails", exc_info=error, extra={"action": "failed"})
            self._trouble = f"a thread that watches a child process failed: {error}"

    def _loop(self) -> None:
        while self._wanted():
            child = self._started()
            if child is not None:
                self._serve(child)
                self._part_with(child)

    def _wanted(self) -> bool:
        """Wait until one more child is wanted; False when no more is."""
        with self._work:
            self._work.wait_for(lambda: self._ended or self._may_start())
            self._starting += 1
            return not self._ended

    def _may_start(self) -> bool:
        return self._settings.idle is None or len(self._queue) > self._idle + self._starting

    def _started(self) -> ChildProcess | None:
        if not self._failures:
            return self._start_child()
        with self._one_at_a_time:
            return self._start_child()

    def _start_child(self) -> ChildProcess | None:
        try:
            child = self._new_child()
        except ChildBroken as error:
            self._not_started(error)
            return None
        with self._work:
            self._children.add(child)
            if self._ended:  # meanwhile, and it was not there yet to be killed with the others
                child.kill()
        try:
            child.wait_ready()
        except ChildBroken as error:
            self._part_with(child)
            self._not_started(error)
            return None
        with self._work:
            self._starting -= 1
            self._ready += 1
        log.info("child process started", extra={"action": "child_started", "child": child.pid})
        self._on_room()
        return child

    def _not_started(self, error: ChildBroken) -> None:
        with self._work:
            self._starting -= 1
        self._failed(str(error))

    def _failed(self, why: str) -> None:
        """A child was of no use, through no fault of a job: wait before the next."""
        with self._work:
            self._failures += 1
            failures = self._failures
            if self._ended:
                return
            if failures >= MOST_FAILURES:
                self._trouble = f"child processes cannot be used: {why}"
        log.error("no child process: %s", why, extra={"action": "child_failed", "failures": failures})
        with self._work:
            self._work.wait_for(lambda: self._ended, BACKOFF_SECONDS * 2 ** min(failures, MOST_FAILURES))

    def _part_with(self, child: ChildProcess) -> None:
        child.retire()
        with self._work:
            self._children.discard(child)

    def _serve(self, child: ChildProcess) -> None:
        """Give the child jobs until it has had enough, is idle for too long, or is gone."""
        alive = True
        while alive and child.jobs < self._settings.jobs_per_child:
            delivery = self._next(child)
            alive = delivery is not None and self._run(child, delivery)
        with self._work:
            self._ready -= 1

    def _next(self, child: ChildProcess) -> Delivery | None:
        with self._work:
            self._idle += 1
            self._work.wait_for(lambda: self._ended or self._queue, self._settings.idle)
            self._idle -= 1
            if self._ended or not self._queue:
                return None
            child.busy = True
            return self._queue.popleft()

    def _run(self, child: ChildProcess, delivery: Delivery) -> bool:
        """Run a job to its end; False when the child is gone."""
        started = self._clock.time()

        def on_start() -> None:
            nonlocal started
            started = self._clock.time()

        def watch() -> None:
            child.tell_lease(lost=not self._alive())

        child.tell_lease(lost=not self._alive())
        ending, committed = child.run(
            order_for(delivery, self._clock), limit=limit_of(delivery), on_start=on_start, watch=watch
        )
        with self._work:
            child.busy = False
            abandoned = self._ended and not isinstance(ending, Answered)
        delivery.committed = delivery.committed or committed
        if isinstance(ending, Unstarted):
            self._again(delivery, ending)
        elif not abandoned:
            ended = self._clock.time()
            outcome = outcome_of_ending(delivery, ending, ended - started)
            self._end(Run(delivery, outcome, started, ended))
        return isinstance(ending, Answered)

    def _again(self, delivery: Delivery, ending: Unstarted) -> None:
        """The child was gone before it had begun: nothing is proven against the job, and it is first in line again."""
        with self._work:
            if not self._ended:
                self._queue.appendleft(delivery)
                self._work.notify_all()
        self._failed(f"the child process {ending.how} while it had no job")

    def _end(self, run: Run) -> None:
        with self._work:
            self._failures = 0
            self._outstanding -= 1
            self._pace.ran(run.delivery.job.job_type, run.finished_at - run.started_at)
            room = self._pace.room(self._outstanding, lost=self._settings.slots - self._ready) > 0
        self._on_runs([run])
        if room:
            self._on_room()


class SuspectExecutor(ProcessExecutor):
    """For jobs whose worker died, whatever their handler is: no lane is read for it, claims find out."""

    _name = "suspect"

    def capacity(self) -> int:
        return 0
