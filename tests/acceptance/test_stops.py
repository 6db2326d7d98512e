"""Stopping a worker costs no job anything."""

from __future__ import annotations

import pytest

from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each, assert_runs
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.world import World

pytestmark = pytest.mark.servers


def _hold(world: World, *, gate: str = "go") -> tuple[WorkerProcess, list[Acked], list[Acked]]:
    """A worker with jobs in its hands, and more of them behind."""
    worker = world.start_worker(worker__concurrency=4, worker__async_concurrency=4)
    held = world.publish(world.jobs.effect, [Task(name=f"held-{n}", gate=gate) for n in range(4)])
    held += world.publish(world.jobs.asynchronous, [Task(name=f"async-{n}", gate=gate) for n in range(4)])
    world.wait("its hands are full", lambda: len(world.executions()) == len(held))
    behind = world.publish(world.jobs.effect, [Task(name=f"behind-{n}") for n in range(60)])
    return worker, held, behind


def test_sigterm_lets_running_jobs_finish_and_leaves_the_others_untouched(world: World) -> None:
    worker, held, behind = _hold(world)
    worker.terminate()
    world.wait("it drains", lambda: worker.said("draining"))
    world.open("go")
    assert worker.wait() == 0
    assert_runs(world, held)
    assert_one_effect_each(world, held[:4])
    started = {run.job_id for run in world.executions()}
    waiting = [job for job in behind if job.job_id not in started]
    assert len(waiting) > len(behind) / 2  # it may have claimed a few ahead
    assert world.lag() == len(waiting)  # what it finished is committed, and only that
    world.start_worker()
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, held + behind)
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_clean_end(world)
