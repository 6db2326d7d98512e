"""Published twice, done once."""

from __future__ import annotations

import pytest

from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_one_effect_each,
    assert_runs,
)
from tests.harness.group import wait_shared
from tests.harness.jobs import Task
from tests.harness.scraping import scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers


def test_a_job_that_is_published_again_before_while_and_after_it_runs_is_done_once(world: World) -> None:
    names = [f"order-{n}" for n in range(12)]

    def publish(gate: str = "go") -> set[str]:
        tasks = [Task(name=name, gate=gate) for name in names]
        return {job.job_id for job in world.publish(world.jobs.effect, tasks, keyed=True)}

    workers = [world.start_worker(worker__http_port=0, worker__concurrency=4) for _ in range(2)]
    # The records of a partition that moves are fetched twice, and would be counted twice.
    wait_shared(world, *workers)
    ids = publish() | publish()  # twelve jobs for eight places: some do not run yet
    world.wait("some run", lambda: len(world.executions()) >= 4)
    ids |= publish()
    world.open("go")
    world.wait_ended()
    ids |= publish()
    world.wait_committed()
    assert len(ids) == len(names)
    assert_runs(world, {job.job_id: job for job in world.acked()}.values())
    assert_one_effect_each(world)
    assert_nothing_lost(world)

    def suppressed() -> float:
        return sum(scrape(worker)["pipeline_jobs_duplicates_total"] for worker in workers)

    world.wait("all repeats are counted", lambda: suppressed() >= 3 * len(names))
    assert suppressed() == 3 * len(names)
    assert_clean_end(world)


def test_the_same_key_of_another_tenant_or_job_type_is_another_job(world: World) -> None:
    tasks = [Task(name="same")]
    jobs = world.publish(world.jobs.effect, tasks, tenant="acme", keyed=True)
    jobs += world.publish(world.jobs.effect, tasks, tenant="borealis", keyed=True)
    jobs += world.publish(world.jobs.plain, tasks, tenant="acme", keyed=True)
    world.start_worker()
    world.wait_ended()
    world.wait_committed()
    assert len({job.job_id for job in jobs}) == 3
    assert_runs(world, jobs)
    assert_clean_end(world)
