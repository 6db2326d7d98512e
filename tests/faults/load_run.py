"""Many jobs through two workers of which one is killed every 20 s, beside the same without kills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.faults.case import Case
from tests.faults.report import Result
from tests.faults.scale import FULL
from tests.faults.site import Site
from tests.faults.watch import Watch
from tests.harness.checks import assert_clean_end, find_doubled, find_lost
from tests.harness.jobs import Task
from tests.harness.processes import WorkerProcess
from tests.harness.world import World

__all__ = ["run_load"]

_BATCH = 2000
_EVERY = 20.0  # seconds between two kills
_EFFECT_EVERY = 10  # one job in so many has an effect


class Measured(NamedTuple):
    """One run. CPU is that of the workers, in microseconds a job."""

    seconds: float
    cpu: float
    memory: float
    kills: int


def run_load(result: Result, site: Site, *, jobs: int, seed: int, folder: Path) -> None:
    result.runs, result.seeds = result.runs + 1, [*result.seeds, seed]
    measured = {}
    for kills in (False, True):
        with ExitStack() as stack:
            case = Case(site, FULL, seed=seed, folder=folder / f"kills-{kills}", stack=stack)
            stack.callback(site.heal)
            try:
                measured[kills] = _run(case, jobs, kills=kills)
            except Exception as error:  # noqa: BLE001 - whatever it is, the rest is run
                result.failures.append(f"{'with' if kills else 'without'} kills: {str(error)[:400]}")
                print(f"  FAIL: {str(error)[:4000]}", flush=True)
                return
            result.figures.merge(case.figures)
    result.remarks += [
        _line("without kills", jobs, measured[False]),
        _line("with kills", jobs, measured[True]),
    ]
    print("\n".join(result.remarks), flush=True)


def _line(name: str, jobs: int, measured: Measured) -> str:
    return (
        f"- {name}: {jobs:,} jobs in {measured.seconds:.0f} s ({jobs / measured.seconds:.0f}/s), "
        f"{measured.cpu:.0f} us of worker CPU a job, at most {measured.memory:.0f} MB a worker, {measured.kills} kills"
    )


def _run(case: Case, jobs: int, *, kills: bool) -> Measured:
    world = case.world()
    _publish(world, jobs)
    cpu: dict[int, float] = {}
    began = time.monotonic()
    with world.sampler() as sampler, Watch(world) as watch:
        for _ in range(2):
            world.start_worker()
        killed = _wait_ended(world, jobs, cpu, kills=kills)
        seconds = time.monotonic() - began
        world.wait_committed()
    case.figures.memory_mb = watch.most_memory()
    doubled, stale = find_doubled(world)
    case.figures.jobs, case.figures.lost = jobs, len(find_lost(world))
    case.figures.doubled = len(doubled.keys() | stale.keys())
    assert not case.figures.lost, f"{case.figures.lost} jobs are lost"
    assert not case.figures.doubled, f"{case.figures.doubled} jobs have another number of effects than one"
    assert sampler.samples
    assert_clean_end(world)
    return Measured(seconds, 1e6 * sum(cpu.values()) / jobs, watch.most_memory(), killed)


def _publish(world: World, jobs: int) -> None:
    """Most do nothing; those with an effect, in a transaction each, take most of the time."""
    for first in range(0, jobs, _BATCH):
        tasks = [
            Task(name=f"load-{n}", fails=1 if n % 100 == 0 else 0)
            for n in range(first, min(jobs, first + _BATCH))
        ]
        world.publish(world.jobs.effect, tasks[::_EFFECT_EVERY])
        world.publish(world.jobs.plain, [task for n, task in enumerate(tasks) if n % _EFFECT_EVERY])


def _wait_ended(world: World, jobs: int, cpu: dict[int, float], *, kills: bool) -> int:
    """Give how many workers were killed."""
    killed = 0
    beats = _beats()
    ended = f"select count(*) from \"{world.name}\".jobs where state in ('completed', 'dead')"
    next_kill = time.monotonic() + _EVERY
    while world.execute(ended)[0][0] < jobs:
        world.wait("a moment", lambda: next(beats), timeout=60)
        running = [worker for worker in world.workers if worker.running]
        for worker in running:
            cpu[worker.pid] = _cpu(worker)
        if kills and time.monotonic() > next_kill:
            running[killed % len(running)].kill()
            world.start_worker()
            killed += 1
            next_kill = time.monotonic() + _EVERY
    return killed


def _beats() -> Iterator[bool]:
    """True once a second."""
    while True:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            yield False
        yield True


def _cpu(worker: WorkerProcess) -> float:
    try:
        times = psutil.Process(worker.pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
