"""Workers come and go under load."""

from __future__ import annotations

import pytest

from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_one_effect_each,
    assert_runs,
)
from tests.harness.jobs import Task
from tests.harness.scraping import scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers


def test_a_job_that_outlasts_a_rebalance_is_not_started_beside_itself(world: World) -> None:
    """The next owner of its partition reads its record again, and waits for the run that goes on."""
    first = world.start_worker(worker__revoke_timeout=0.5)
    jobs = world.publish(world.jobs.effect, [Task(name=f"long-{n}", gate="go") for n in range(4)])
    jobs += world.publish(world.jobs.asynchronous, [Task(name=f"long-{n}", gate="go") for n in range(9)])
    world.wait("all of them run", lambda: len(world.executions()) == len(jobs))
    second = world.start_worker(worker__http_port=0)
    world.wait("the next owner holds some", lambda: scrape(second)["pipeline_jobs_held_total"] >= 5)
    world.open("go")
    world.wait_ended()
    world.wait_committed()
    assert {run.pid for run in world.executions()} == {first.pid}
    assert_runs(world, jobs)
    assert_one_effect_each(world, jobs[:4])
    assert_nothing_lost(world)
    assert_clean_end(world)


def test_three_workers_share_three_partitions(world: World) -> None:
    """Counting partitions alone, one worker could get all of the main topic, and the others nothing but retries."""
    workers = [world.start_worker() for _ in range(3)]

    def shared() -> bool:
        jobs = world.publish(world.jobs.plain, [Task(name=f"look-{n}") for n in range(9)])
        world.wait_ended(jobs)
        who = {run.job_id: run.pid for run in world.executions()}
        readers = {(job.partition, who[job.job_id]) for job in jobs}
        return sorted(pid for _, pid in readers) == sorted(worker.pid for worker in workers)

    world.wait("each has one of them", shared)
    world.wait_committed()
    assert_clean_end(world)


def _short(number: int) -> Task:
    return Task(name=f"short-{number}", seconds=0.01)
