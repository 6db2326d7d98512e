"""Failing jobs: retried after their delays, then dead with every error, and replayed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pipeline.core.job import Record
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each, assert_runs
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.world import World

pytestmark = pytest.mark.servers

# What a loaded machine of two cores may add to a delay. That nothing is early is exact.
LATE = 30.0


def test_a_job_that_always_fails_is_dead_after_exactly_its_attempts_with_every_error(world: World) -> None:
    failing = world.publish(world.jobs.effect, [Task(name=f"broken-{n}", fails=-1) for n in range(6)])
    failing += world.publish(world.jobs.asynchronous, [Task(name="broken-async", fails=-1)])
    once = world.publish(world.jobs.effect, [Task(name=f"shaky-{n}", fails=1) for n in range(6)])
    sound = world.publish(world.jobs.effect, [Task(name=f"sound-{n}") for n in range(20)])
    for _ in range(2):
        world.start_worker()
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, sound)
    assert_runs(world, once, attempts=[1, 2])
    assert_runs(world, failing, attempts=[1, 2, 3])
    for job in failing:
        _assert_dead_with_every_error(world, job)
    for job in [*failing, *once]:
        _assert_delays(world, job, [1.0, 2.0])
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_clean_end(world)


def _assert_dead_with_every_error(world: World, job: Acked) -> None:
    story = world.story(job.job_id)
    name = world.executions(job_id=job.job_id)[0].name
    expected = [f"{name} fails in attempt {attempt}" for attempt in (1, 2, 3)]
    assert story.state is JobState.DEAD
    assert [(run.attempt, run.failure and run.failure.message) for run in story.attempts] == list(
        enumerate(expected, 1)
    )
    assert [run.outcome for run in story.attempts] == [AttemptOutcome.FAILED] * 2 + [AttemptOutcome.DEAD]
    (letter,) = [letter for letter in world.letters() if _header(letter, "ce_id") == job.job_id]
    assert _header(letter, "pipeline-reason") == "max_attempts"
    assert _header(letter, "pipeline-first-error-message") == expected[0]
    assert _header(letter, "pipeline-last-error-message") == expected[2]
    assert _header(letter, "pipeline-last-error-class") == "tests.harness.handlers.ToldToFail"
    first = (job.topic, str(job.partition), str(job.offset))
    assert (
        tuple(_header(letter, f"pipeline-first-{part}") for part in ("topic", "partition", "offset")) == first
    )
    (published,) = [r for r in world.records(job.topic) if _header(r, "ce_id") == job.job_id]
    assert (letter.key, letter.value) == (published.key, published.value)


def _assert_delays(world: World, job: Acked, delays: list[float]) -> None:
    runs = world.executions(job_id=job.job_id)
    for (before, after), delay in zip(pairwise(runs), delays, strict=False):
        assert delay <= after.started - before.ended <= delay + LATE, (before, after)


def _header(record: Record, name: str) -> str:
    (value,) = [content for header, content in record.headers if header == name]
    return (value or b"").decode()


def test_dead_jobs_are_replayed_from_the_command_line_after_a_fix_and_replaying_twice_runs_them_once(
    world: World,
) -> None:
    jobs = world.publish(world.jobs.effect, [Task(name=f"broken-{n}", fails=-1) for n in range(6)])
    world.start_worker()
    world.wait_ended()
    world.open("fixed")
    plan = world.cli("dlq", "replay", "--all")
    assert plan.code == 0, plan.err
    assert set(world.states().values()) == {JobState.DEAD}  # a plan does nothing
    for _ in range(2):
        replayed = world.cli("dlq", "replay", "--all", "--execute")
        assert replayed.code == 0, replayed.err
    world.wait(
        "all completed", lambda: set(world.states().values()) == {JobState.COMPLETED} and world.lag() == 0
    )
    again = world.cli("dlq", "replay", "--all", "--execute")
    assert again.code == 0, again.err
    world.wait_committed()
    assert_runs(world, jobs, attempts=[1, 2, 3, 1])
    assert_one_effect_each(world, jobs)
    told = world.cli("job", "show", jobs[0].job_id)
    assert told.code == 0
    assert "completed" in told.out
    assert "broken-0 fails in attempt 2" in told.out
    assert_clean_end(world)
