"""Jobs that run for longer than Kafka waits for a poll: the worker stays in its group, and they run once."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import NewWorld
from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_offsets_held,
    assert_one_effect_each,
    assert_runs,
)
from tests.harness.group import rebalances, wait_shared
from tests.harness.jobs import Task

pytestmark = pytest.mark.servers

MAX_POLL_INTERVAL = 10
LONG = 15.0  # and longer than the lease, too


def test_jobs_longer_than_the_poll_interval_run_once_while_others_go_on(new_world: NewWorld) -> None:
    world = new_world(settings={"worker.max_poll_interval": MAX_POLL_INTERVAL, "worker.revoke_timeout": 1})
    workers = [world.start_worker(), world.start_worker()]
    wait_shared(world, *workers)
    before = rebalances(workers)
    with world.sampler() as sampler:
        # They also wait until the others are done, however long that takes.
        tasks = [Task(name=f"long-{n}", seconds=LONG, gate="go") for n in range(6)]
        long = world.publish(world.jobs.effect, tasks) + world.publish(world.jobs.asynchronous, tasks)
        ids = {job.job_id for job in long}
        world.wait("all of these run", lambda: ids <= {run.job_id for run in world.executions()})
        others = world.publish(world.jobs.effect, [Task(name=f"short-{n}") for n in range(100)])
        world.wait_ended(others)
        assert not [run for run in world.executions() if run.job_id in ids and run.ended]
        world.open("go")
        world.wait_ended()
        world.wait_committed()
    runs = [run for run in world.executions() if run.job_id in ids]
    assert min(run.ended - run.started for run in runs) > MAX_POLL_INTERVAL
    assert_runs(world, world.acked())
    assert_nothing_lost(world)
    assert_one_effect_each(world, [*long[:6], *others])
    assert_offsets_held(world, sampler.samples)
    assert rebalances(workers) == before, "partitions have moved"
    assert_clean_end(world)
