"""Jobs of several tenants at a steady rate, whatever happens meanwhile, and what became of them."""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pipeline import JobType, PublishFailed
from tests.faults.scale import Scale
from tests.harness.background import Background
from tests.harness.jobs import Task
from tests.harness.ledger import Acked, Ledger
from tests.harness.waiting import wait_until
from tests.harness.world import World

__all__ = ["MIX", "Load", "Mix", "Planned"]

# Up to which share of a dice roll a job is of which type.
Mix = Sequence[tuple[float, str]]
MIX: Mix = ((0.05, "ordered"), (0.25, "asynchronous"), (1.0, "effect"))

_BEAT = 0.05
_GOOD_RATE = 0.8
_GIVE_UP_AFTER = 120.0


class Planned(NamedTuple):
    """A job that is to be published, and, once it was, under which id."""

    task: Task
    job_type: JobType[Task]
    tenant: str
    sequence: int


class Load(Background):
    """Publishes between `__enter__` and `finish`. One tenant sends half of the jobs.

    A job that was not acknowledged is published again under its idempotency key until it was. One in 100 fails once, one in
    400 always; one in 20 belongs to a type that keeps its order.
    """

    def __init__(
        self, world: World, scale: Scale, rng: random.Random, *, mix: Mix = MIX, failing: bool = True
    ) -> None:
        self._world = world
        self._scale = scale
        self._rng = rng
        self._mix = mix
        self._failing = failing
        super().__init__("load")
        self._sequences: dict[str, int] = {}
        self._ledger = Ledger(world.folder / "executions")
        self._seen = 0
        self._ends: list[float] = []
        self.told: dict[str, Task] = {}
        self.published_at: dict[str, float] = {}
        self.refused: list[float] = []  # how long calls took that ended in an error
        self.began = 0.0
        self.steady: tuple[float, float] = (0.0, 0.0)
        self.faults: list[tuple[float, float]] = []

    # --- phases

    def wait_steady(self) -> None:
        """Every worker works, and has done so for the time of warm-up and the time that is measured."""
        pids = {worker.pid for worker in self._world.workers if worker.running}
        self._world.wait("all workers work", lambda: pids <= {run.pid for run in self._world.executions()})
        began = time.time() + self._scale.warm_up
        self.steady = began, began + self._scale.steady
        self.pass_time(self._scale.warm_up + self._scale.steady)

    def pass_time(self, seconds: float) -> None:
        """Let the load go on for so long. Fails if a worker ends that was not told to."""
        until = time.monotonic() + seconds
        self._world.wait(f"{seconds:g} s of load", lambda: time.monotonic() >= until, timeout=seconds + 30)

    @contextmanager
    def fault(self) -> Iterator[None]:
        """What the block does is the fault; with its end all is healed."""
        began = time.time()
        yield
        self.faults.append((began, time.time()))

    def wait_recovered(self) -> float:
        """Wait until the rate is back after the last fault, and give how many seconds that took."""
        wait_until(
            lambda: self.recovery() is not None,
            "the rate is back",
            timeout=_GIVE_UP_AFTER,
            context=self._context,
        )
        return self.recovery() or 0.0

    def finish(self) -> None:
        """Go on until the rate is back after the last fault and all jobs are published."""
        if self.faults:
            self.wait_recovered()
        self._world.wait("all are published", lambda: len(self.told) >= self._scale.jobs, timeout=600)
        self._stopped.set()
        self._thread.join()

    def _context(self) -> str:
        return f"steady rate {self.steady_rate():.1f}\n" + "\n".join(
            worker.tail() for worker in self._world.workers if worker.running
        )

    # --- what was measured

    def completions(self) -> list[float]:
        """When runs ended well, in this order. Reads only what is new: it is asked again and again."""
        entries = self._ledger.entries()
        new = [each["at"] for each in entries[self._seen :] if each["event"] == "end" and not each["error"]]
        self._seen = len(entries)
        if new:
            self._ends = sorted([*self._ends, *new])
        return self._ends

    def steady_rate(self) -> float:
        """Completions a second before the fault; no more than are published, when a backlog was still worked off."""
        since, until = self.steady
        return min(self.done_during(self.steady) / (until - since), self._scale.rate)

    def recovery(self) -> float | None:
        """Seconds from the end of the last fault to the first window at 80 % of the steady rate; None: not yet."""
        _, healed = self.faults[-1]
        ends = self.completions()
        ends = ends[bisect_left(ends, healed) :]
        wanted = _GOOD_RATE * self.steady_rate() * self._scale.window
        now = time.time()
        first = 0
        for last, end in enumerate(ends):
            while ends[first] <= end - self._scale.window:
                first += 1
            if last - first + 1 >= wanted:
                return max(0.0, end - self._scale.window - healed)
        return 0.0 if wanted < 1 and now > healed + self._scale.window else None

    def done_during(self, fault: tuple[float, float]) -> int:
        since, until = fault
        ends = self.completions()
        return bisect_left(ends, until) - bisect_left(ends, since)

    # --- publishing

    def _loop(self) -> None:
        self.began = time.monotonic()
        number = 0
        while not self._stopped.wait(_BEAT):
            due = min(int((time.monotonic() - self.began) * self._scale.rate), number + 500)
            plan = [self._plan(each) for each in range(number, due)]
            number = due
            while plan:
                plan = self._publish(plan)

    def _plan(self, number: int) -> Planned:
        jobs, rng = self._world.jobs, self._rng
        heavy = rng.random() < 0.5
        tenant = f"tenant-{0 if heavy else rng.randrange(1, self._scale.tenants)}"
        dice = rng.random()
        job_type = getattr(jobs, next(name for share, name in self._mix if dice < share))
        dice = rng.random()
        fails = 0 if not self._failing else 1 if dice < 0.01 else -1 if dice < 0.0125 else 0
        sequence = self._sequences.get(tenant, 0)
        self._sequences[tenant] = sequence + 1
        task = Task(name=f"load-{number}", seconds=0.005, fails=fails)
        return Planned(task, job_type, tenant, sequence)

    def _publish(self, plan: list[Planned]) -> list[Planned]:
        """Give those that were not acknowledged."""
        asked, now = time.monotonic(), time.time()
        futures = []
        failed: list[Planned] = []
        for job in plan:
            try:
                futures.append(
                    (
                        job,
                        self._world.publisher.publish_async(
                            job.job_type, job.task, tenant=job.tenant, idempotency_key=job.task.name
                        ),
                    )
                )
            except PublishFailed:
                failed.append(job)
        acked = []
        for job, future in futures:
            try:
                published = future.result(60)
            except PublishFailed:
                failed.append(job)
            else:
                acked.append(Acked(*published, job.tenant, job.sequence))
                self.told[published.job_id] = job.task
                self.published_at[published.job_id] = now
        self._world.note_acked(acked)
        if failed:
            self.refused.append(time.monotonic() - asked)
        return failed
