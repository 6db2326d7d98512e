"""Workers are told to stop, are frozen, and come and go."""

from __future__ import annotations

import time

from pipeline.core.state import JobState
from tests.faults.case import Case, Loaded, scenario
from tests.faults.rows.kills import TENANTS
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.scraping import scrape
from tests.harness.world import World

__all__: list[str] = []


@scenario(8)
def a_frozen_worker_comes_back_after_its_lease(case: Case) -> None:
    """Whatever it does then is refused: completion, retry, commit."""
    world = case.world()
    zombie = world.start_worker(worker__http_port=0, worker__concurrency=16)
    kinds = (world.jobs.effect, world.jobs.plain, world.jobs.asynchronous)
    with case.loaded(world, workers=0) as loaded:
        fails = [0, 1, 0]
        jobs = [
            job
            for kind, times in zip(kinds, fails, strict=True)
            for job in world.publish(
                kind, [Task(name="contested", gate="go", fails=times)], tenant="tenant-1"
            )
        ]
        ids = loaded.ids(jobs)
        world.wait("all of them run", lambda: len(_runs(world, zombie, ids)) == len(jobs))
        with loaded.load.fault():
            zombie.pause()
            other = world.start_worker()
            world.wait("the other runs them", lambda: len(_runs(world, other, ids)) == len(jobs))
            world.open("go-1")  # the frozen worker's runs go on, those of the other wait
            zombie.resume()
            world.wait(
                "late ends are refused", lambda: scrape(zombie)["pipeline_settles_fenced_total"] >= len(jobs)
            )
            states = world.states()
            assert {states[job_id] for job_id in ids} == {JobState.RUNNING}
            assert not [effect for effect in world.effects() if effect.job_id in ids]
            world.open("go-2")
            world.open("go-3")
    for job, times in zip(jobs, fails, strict=True):
        runs = [(run.attempt, run.token) for run in world.executions(job_id=job.job_id)]
        assert runs[:2] == [(1, 1), (1, 2)], runs
        assert len(runs) == 2 + times, runs
    case.judge(loaded, apart=ids)


def _runs(world: World, worker: WorkerProcess, ids: set[str]) -> list[str]:
    return [run.job_id for run in world.executions(pid=worker.pid) if run.job_id in ids]


@scenario(9)
def workers_are_told_to_stop(case: Case) -> None:
    """In three ways; each exits with 0, burns no attempt, and leaves what it did not finish to another."""
    world = case.world()
    with case.loaded(world) as loaded, loaded.load.fault():
        _leaves_in_order(loaded)
        _leaves_a_long_handler_behind(loaded)
        _leaves_at_the_second_signal(loaded)
    case.judge(loaded)


def _leaves_in_order(loaded: Loaded) -> None:
    worker, held = _hold(loaded, "first")
    worker.terminate()
    loaded.world.wait("it drains", lambda: worker.said("draining"))
    loaded.world.open("first")
    assert worker.wait() == 0
    _assert_attempts(loaded, held, [1])


def _leaves_a_long_handler_behind(loaded: Loaded) -> None:
    worker, held = _hold(loaded, "second", drain_timeout=1)
    asked = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - asked >= 1
    loaded.world.open("second")
    loaded.world.wait_ended(held)
    _assert_attempts(loaded, held, [1, 1])


def _leaves_at_the_second_signal(loaded: Loaded) -> None:
    worker, held = _hold(loaded, "third", drain_timeout=60)
    worker.terminate()
    loaded.world.wait("it drains", lambda: worker.said("draining"))
    worker.terminate()
    assert worker.wait() == 0
    loaded.world.open("third")
    loaded.world.wait_ended(held)
    _assert_attempts(loaded, held, [1, 1])


def _hold(loaded: Loaded, gate: str, drain_timeout: float = 15) -> tuple[WorkerProcess, list[Acked]]:
    """One more worker, with jobs in its hands that wait for the gate."""
    world = loaded.world
    worker = world.start_worker(worker__drain_timeout=drain_timeout)
    world.wait("it works", lambda: len(world.executions(pid=worker.pid)) >= 5)
    held: list[Acked] = []
    mine: list[Acked] = []

    def has_one() -> bool:
        held.extend(job for tenant in TENANTS for job in loaded.hold(1, gate, tenant=tenant))
        its = {run.job_id for run in world.executions(pid=worker.pid)}
        mine[:] = [job for job in held if job.job_id in its]
        return bool(mine)

    world.wait("it has one of them", has_one)
    return worker, mine


def _assert_attempts(loaded: Loaded, jobs: list[Acked], attempts: list[int]) -> None:
    loaded.world.wait_ended(jobs)
    for job in jobs:
        runs = [run.attempt for run in loaded.world.executions(job_id=job.job_id)]
        assert runs == attempts, (job, runs)


def _storm(case: Case, protocol: str) -> None:
    """All leave in order, so nothing is run again; every partition drains afterwards."""
    world = case.world(settings={"worker.rebalance_protocol": protocol, "worker.concurrency": 16})
    with case.loaded(world) as loaded:
        until = time.monotonic() + case.scale.storm
        with loaded.load.fault():
            while time.monotonic() < until:
                world.start_worker()
                loaded.load.pass_time(2)
                assert case.rng.choice([each for each in world.workers if each.running][:-1]).stop() == 0
                loaded.load.pass_time(2)
    case.judge(loaded)
    assert case.figures.redelivered == 0, "jobs were run again though all left in order"


@scenario(19, "cooperative-sticky")
def members_come_and_go_cooperatively(case: Case) -> None:
    _storm(case, "cooperative-sticky")


@scenario(19, "range")
def members_come_and_go_eagerly(case: Case) -> None:
    _storm(case, "range")


@scenario(19, "KIP-848")
def members_come_and_go_as_the_broker_says(case: Case) -> None:
    _storm(case, "consumer")
