"""Plain and async handlers side by side in one worker, and their time limits."""

from __future__ import annotations

import pytest

from pipeline.core.state import JobState
from tests.acceptance.conftest import NewWorld
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each, assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.world import World

pytestmark = pytest.mark.servers

TIME_LIMIT = 3.0  # longer than the other jobs may take on a loaded machine


def test_plain_and_async_handlers_work_beside_each_other(world: World) -> None:
    """All plain slots are taken; async jobs, from the same partitions, do not wait for them."""
    worker = world.start_worker(worker__concurrency=3)
    blocking = world.publish(world.jobs.plain, [Task(name=f"blocking-{n}", gate="go") for n in range(3)])
    world.wait("plain handlers are all busy", lambda: len(world.executions()) == 3)
    quick = world.publish(world.jobs.asynchronous, [Task(name=f"quick-{n}", seconds=0.1) for n in range(40)])
    behind = world.publish(world.jobs.effect, [Task(name=f"behind-{n}") for n in range(10)])
    world.wait_ended(quick)
    states = world.states()
    assert {states[job.job_id] for job in blocking} == {JobState.RUNNING}
    assert worker.running
    world.open("go")
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, blocking + quick + behind)
    assert_one_effect_each(world, behind)
    assert_clean_end(world)


def test_a_handler_that_overruns_its_time_limit_has_failed_and_others_go_on(new_world: NewWorld) -> None:
    world = new_world(policy=Policy(max_attempts=2, timeout=TIME_LIMIT))
    hanging = [
        *world.publish(world.jobs.plain, [Task(name="hangs", gate="never")]),
        *world.publish(world.jobs.asynchronous, [Task(name="hangs", gate="never")]),
    ]
    world.start_worker()
    others = world.publish(world.jobs.effect, [Task(name=f"other-{n}", seconds=0.05) for n in range(20)])
    world.wait_ended(hanging)
    world.wait_ended(others)
    world.wait_committed()
    assert_runs(world, hanging, attempts=[1, 2])
    assert_runs(world, others)
    for job in hanging:
        story = world.story(job.job_id)
        assert story.state is JobState.DEAD
        failures = [run.failure for run in story.attempts]
        assert [failure and failure.error_class for failure in failures] == ["TimeoutError"] * 2
        durations = [run.duration for run in story.attempts]
        assert all(TIME_LIMIT <= seconds < 10 * TIME_LIMIT for seconds in durations), durations
    assert_nothing_lost(world)
    assert_one_effect_each(world, others)
    world.open("never")  # the plain handlers return, far too late: it changes nothing
    world.wait("their slots are back", lambda: len(world.workers[0].said("overdue_returned")) == 2)
    assert world.story(hanging[0].job_id).state is JobState.DEAD
    assert_clean_end(world)
