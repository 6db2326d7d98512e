"""What a scenario works with."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.faults.evidence import Evidence
from tests.faults.figures import Figures
from tests.faults.load import MIX, Load, Mix
from tests.faults.matrix import MATRIX
from tests.faults.scale import Scale
from tests.faults.site import Site
from tests.faults.watch import Watch
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.sampler import OffsetSampler
from tests.harness.world import World
from tests.servers import TestServers

__all__ = ["SCENARIOS", "Case", "Loaded", "Scenario", "scenario"]

Kept = TypeVar("Kept")


class Case:
    """One run of one scenario: its servers, its scale, its seed, and the figures that it gathers."""

    def __init__(
        self,
        site: Site,
        scale: Scale,
        *,
        seed: int,
        folder: Path,
        stack: ExitStack,
        program: Sequence[str] = ("-m", "pipeline"),
        patience: float = 300.0,
    ) -> None:
        """`program` is what workers run; `patience` is how long all jobs may take to end after the fault."""
        self._program = program
        self._patience = patience
        self.site = site
        self.scale = scale
        self.rng = random.Random(seed)
        self.figures = Figures()
        self.folder = folder
        self._stack = stack
        self._worlds = 0

    def keep(self, own: AbstractContextManager[Kept]) -> Kept:
        """Something of the scenario's own, such as a server: entered now, left when the scenario ends."""
        return self._stack.enter_context(own)

    def world(self, *, on: TestServers | None = None, **options: Any) -> World:
        """A world with these options of `World`, removed when the scenario ends. By default on the servers of the site."""
        self._worlds += 1
        folder = self.folder / f"world-{self._worlds}"
        folder.mkdir(parents=True)
        return self.keep(World(on or self.site.servers, folder, program=self._program, **options))

    @contextmanager
    def loaded(
        self, world: World, *, workers: int = 2, mix: Mix = MIX, failing: bool = True
    ) -> Iterator[Loaded]:
        """So many workers more under a steady load, watched; after the block the load ends, and the jobs do.

        Without `failing` no job of the load is told to fail.
        The block does the fault. What is to be checked of the evidence comes after it: `judge`.
        """
        for _ in range(workers):
            world.start_worker()
        with (
            world.sampler() as sampler,
            Watch(world) as watch,
            Load(world, self.scale, self.rng, mix=mix, failing=failing) as load,
        ):
            load.wait_steady()
            loaded = Loaded(world, load, sampler, watch)
            yield loaded
            load.finish()
            loaded.drain(self._patience)
        self.figures.memory_mb = max(self.figures.memory_mb, watch.most_memory())
        if load.faults:
            self.figures.recoveries.append(load.recovery() or 0.0)

    def judge(self, loaded: Loaded, *, killed: Collection[int] = (), apart: Collection[str] = ()) -> None:
        """Count and judge the evidence. Of jobs `apart`, the scenario itself says how often they run."""
        told = {job.job_id: Task(name="") for job in loaded.world.acked()} | loaded.load.told
        wanted = {job_id: task for job_id, task in told.items() if job_id not in apart}
        self.judge_world(loaded.world, loaded.sampler, told=wanted, killed=killed, apart=apart)

    def judge_world(
        self,
        world: World,
        sampler: OffsetSampler,
        *,
        told: Mapping[str, Task] | None = None,
        killed: Collection[int] = (),
        apart: Collection[str] = (),
    ) -> None:
        """The same for a world without a load."""
        evidence = Evidence(world, sampler.samples, told or {}, killed, apart)
        evidence.count(self.figures)
        evidence.judge()


class Loaded(NamedTuple):
    """A world under load."""

    world: World
    load: Load
    sampler: OffsetSampler
    watch: Watch

    def hold(self, count: int, gate: str = "go", *, tenant: str | None = None) -> list[Acked]:
        """So many jobs more, which run, and go on when the gate opens."""
        world = self.world
        tasks = [Task(name=f"{gate}-{number}", gate=gate) for number in range(count)]
        jobs = world.publish(world.jobs.effect, tasks, tenant=tenant)
        ids = self.ids(jobs)
        world.wait("these run", lambda: ids <= {run.job_id for run in world.executions()})
        return jobs

    @staticmethod
    def ids(jobs: Collection[Acked]) -> set[str]:
        return {job.job_id for job in jobs}

    def holders(self, jobs: Collection[Acked]) -> set[int]:
        """The processes that run them."""
        ids = self.ids(jobs)
        return {run.pid for run in self.world.executions() if run.job_id in ids}

    def owners(self) -> dict[int, int]:
        """By partition of the main topic, the process that ran a job of it last.

        Runs count from when every worker has begun one: before, a partition may be about to move to one that has none yet.
        Only first attempts do: those after come from a retry topic, whose partitions may be another's.
        """
        places = {job.job_id: job.partition for job in self.world.acked()}
        waiting, owners = {worker.pid for worker in self.world.workers}, dict[int, int]()
        for run in self.world.executions():
            waiting.discard(run.pid)
            if not waiting and run.attempt == 1 and run.job_id in places:
                owners[places[run.job_id]] = run.pid
        return owners

    def worker(self, pid: int) -> WorkerProcess:
        (found,) = [worker for worker in self.world.workers if worker.pid == pid]
        return found

    def drain(self, timeout: float) -> None:
        """Wait until nothing is left to do."""
        world = self.world
        count = len({job.job_id for job in world.acked()})
        ended = (
            f"select count(*) from \"{world.name}\".jobs where state in ('completed', 'dead', 'cancelled')"
        )
        world.wait("all jobs have ended", lambda: world.execute(ended)[0][0] >= count, timeout=timeout)
        world.wait_committed()


class Scenario(NamedTuple):
    """A way to inject one fault of the matrix. `name` tells several ways of one row apart."""

    row: int
    name: str
    quick: bool
    run: Callable[[Case], None]

    def __str__(self) -> str:
        return f"{self.row}-{self.run.__name__}" + (f"-{self.name}" if self.name else "")


SCENARIOS: list[Scenario] = []


def scenario(
    row: int, name: str = "", *, quick: bool | None = None
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a scenario. It belongs to the quick tier if its row does, unless it says otherwise."""

    def register(run: Callable[[Case], None]) -> Callable[[Case], None]:
        SCENARIOS.append(Scenario(row, name, MATRIX[row].quick if quick is None else quick, run))
        return run

    return register
