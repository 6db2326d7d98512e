"""A worker is killed, or frozen: another does its jobs, and what it does too late changes nothing."""

from __future__ import annotations

from signal import SIGKILL

import pytest

from pipeline.core.state import JobState
from tests.acceptance.conftest import NewWorld
from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_offsets_held,
    assert_one_effect_each,
    assert_runs,
)
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.scraping import scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers


def test_jobs_of_a_killed_worker_are_done_by_another_in_the_same_attempt_under_the_next_token(
    world: World,
) -> None:
    done = world.publish(world.jobs.effect, [Task(name=f"before-{n}") for n in range(30)])
    victim = world.start_worker()
    world.wait_ended(done)
    held = world.publish(world.jobs.effect, [Task(name=f"held-{n}", gate="go") for n in range(3)])
    held += world.publish(world.jobs.asynchronous, [Task(name=f"async-{n}", gate="go") for n in range(3)])
    world.wait("its jobs run", lambda: {run.job_id for run in world.executions()} >= {j.job_id for j in held})
    waiting = world.publish(world.jobs.plain, [Task(name=f"queued-{n}", gate="go") for n in range(20)])
    with world.sampler() as sampler:
        victim.kill()
        world.open("go")
        rescuer = world.start_worker()
        world.wait_ended()
        world.wait_committed()
    assert_runs(world, done)
    assert_runs(world, held, attempts=[1, 1])
    for job in held:
        first, second = world.executions(job_id=job.job_id)
        assert (first.pid, first.token) == (victim.pid, 1)
        assert (second.pid, second.token) == (rescuer.pid, 2)
    for job in waiting:
        assert {run.attempt for run in world.executions(job_id=job.job_id)} == {1}
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def test_an_effect_is_there_once_wherever_the_kill_strikes(new_world: NewWorld) -> None:
    """Before the effect, between effect and commit, and after the commit but before the worker could note it."""
    runs = {"before": 2, "inside": 2, "after": 1}
    worlds = {place: new_world() for place in runs}  # beside each other: all of them wait for a lease to end
    for place, world in worlds.items():
        world.publish(world.jobs.effect, [Task(name=place, dies=place)])
        world.start_worker()
    for world in worlds.values():
        assert world.workers[0].wait() == -SIGKILL
        world.publish(world.jobs.effect, [Task(name=f"bystander-{n}") for n in range(10)])
        world.start_worker()
    for place, world in worlds.items():
        world.wait_ended()
        world.wait_committed()
        assert_runs(world, world.acked()[:1], attempts=[1] * runs[place])
        assert_runs(world, world.acked()[1:])
        assert_nothing_lost(world)
        assert_one_effect_each(world)
        assert_clean_end(world)


def test_what_a_frozen_worker_does_after_its_lease_is_refused(world: World) -> None:
    zombie = world.start_worker(worker__http_port=0)
    jobs = [
        job
        for job_type in (world.jobs.effect, world.jobs.plain, world.jobs.asynchronous)
        for job in world.publish(job_type, [Task(name="contested", gate="go")], tenant="tenant-1")
    ]
    world.wait("all of them run", lambda: len(world.executions()) == len(jobs))
    zombie.pause()
    other = world.start_worker()
    world.wait("the other has taken over", lambda: len(world.executions(pid=other.pid)) == len(jobs))
    with world.sampler() as sampler:
        world.open("go-1")  # the frozen worker's runs go on, those of the other wait
        zombie.resume()
        world.wait(
            "the late ends are refused", lambda: scrape(zombie)["pipeline_settles_fenced_total"] == len(jobs)
        )
        assert not world.effects()
        assert set(world.states().values()) == {JobState.RUNNING}
        world.open("go-2")
        world.wait_ended()
        world.wait_committed()
    assert_runs(world, jobs, attempts=[1, 1])
    assert_one_effect_each(world, jobs[:1])
    assert {world.story(job.job_id).token for job in jobs} == {2}
    assert_offsets_held(world, sampler.samples)
    # The thawed worker is a member of the group again: alone, it does what comes.
    assert other.stop() == 0
    assert_runs(world, _done_by(world, zombie))
    assert_nothing_lost(world)
    assert_clean_end(world)


def _done_by(world: World, worker: WorkerProcess) -> list[Acked]:
    jobs = world.publish(world.jobs.effect, [Task(name=f"later-{n}") for n in range(9)])
    world.wait_ended(jobs)
    world.wait_committed()
    assert {run.job_id for run in world.executions(pid=worker.pid)} >= {job.job_id for job in jobs}
    return jobs
