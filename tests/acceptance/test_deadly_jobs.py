"""Jobs that kill the process they run in: they stop after two deaths of their own, and cost nobody else anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psutil
import pytest

from pipeline import load_settings
from pipeline.core import headers
from pipeline.core.headers import parse_job
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from tests.acceptance.deadly_app import LANES, TARGET, Deed, app, write_deed_schemas
from tests.harness.checks import assert_clean_end, assert_nothing_lost
from tests.harness.ledger import Acked
from tests.harness.world import World

pytestmark = pytest.mark.servers

MEMORY_MB = 400
TENANTS = ("tenant-2", "tenant-0", "tenant-5")  # one for each partition, in their order
DEADLY = ["exit", "crash", "eat"]


@pytest.fixture
def deadly(new_world: Callable[..., World]) -> World:
    world = new_world(
        settings={
            "worker.process_memory_mb": MEMORY_MB,
            "worker.process_concurrency": 2,
            "retry.tiers": [1, 2],
        }
    )
    write_deed_schemas(world.folder / "schemas")
    app.configure(load_settings(environ=world.environment()))
    return world


def publish(world: World, lane: str, deeds: Sequence[Deed], *, tenant: str | None = None) -> list[Acked]:
    """Without a tenant: to all partitions in turn."""
    with app.publisher(source="driver") as publisher:
        acked = [
            Acked(*publisher.publish(LANES[lane], deed, tenant=tenant or TENANTS[number % len(TENANTS)]))
            for number, deed in enumerate(deeds)
        ]
    world.note_acked(acked)
    return acked


def wait_running(world: World, jobs: Sequence[Acked]) -> None:
    ids = {job.job_id for job in jobs}
    world.wait("they run", lambda: {run.job_id for run in world.executions()} >= ids)


def assert_innocent(world: World, jobs: Sequence[Acked], *, runs: Sequence[int] | None = None) -> None:
    """Completed in their first attempt, in so many runs if that is given."""
    states = world.states()
    for job in jobs:
        attempts = [run.attempt for run in world.executions(job_id=job.job_id)]
        assert states[job.job_id] is JobState.COMPLETED
        assert attempts == list(runs) if runs else set(attempts) == {1}


def assert_poison(world: World, job: Acked) -> None:
    """It rests in the DLQ for what it is, and its story tells of two deaths of its own."""
    (letter,) = [
        each for each in world.letters() if parse_job(each, queue="default").job.job_id == job.job_id
    ]
    assert dict(letter.headers)[headers.REASON] == b"poison"
    story = world.story(job.job_id)
    assert (story.state, story.reason, story.crashes) == (JobState.DEAD, "poison", 2)
    own = [attempt for attempt in story.attempts if attempt.outcome is not AttemptOutcome.LOST]
    assert [attempt.attempt for attempt in own] == [1, 2]
    for attempt in own:
        assert attempt.failure is not None
        assert attempt.failure.error_class in ("ProcessDied", "MemoryError")


def test_a_deadly_job_of_the_process_lane_takes_two_children_and_no_worker(deadly: World) -> None:
    worker = deadly.start_worker(target=TARGET)
    beside = publish(deadly, "thread", [Deed(name="beside", gate="go")] * 4)
    wait_running(deadly, beside)
    poison = publish(deadly, "process", [Deed(name=do, do=do) for do in DEADLY])
    after = publish(deadly, "process", [Deed(name="after")] * 20)
    deadly.wait_ended([*poison, *after])
    deadly.open("go")
    deadly.wait_ended()
    deadly.wait_committed()
    for job in poison:
        runs = deadly.executions(job_id=job.job_id)
        assert [run.attempt for run in runs] == [1, 2]
        assert worker.pid not in {run.pid for run in runs}
        assert_poison(deadly, job)
    assert_innocent(deadly, [*beside, *after], runs=[1])
    assert_nothing_lost(deadly)
    assert_clean_end(deadly)


def test_many_deadly_jobs_take_at_most_one_worker_each(deadly: World) -> None:
    """Workers that die are replaced; what is left in the end is a system that works."""
    workers = [deadly.start_worker(target=TARGET) for _ in range(2)]
    innocent = publish(deadly, "async", [Deed(name="innocent")] * 60)
    poison = [
        job
        for lane in ("thread", "async", "process")
        for job in publish(deadly, lane, [Deed(name=f"poison-{do}", do=do) for do in ("exit", "crash")])
    ]
    innocent += publish(deadly, "thread", [Deed(name="innocent")] * 60)

    def all_ended() -> bool:
        for worker in [each for each in workers if not each.running]:
            workers.remove(worker)
            workers.append(deadly.start_worker(target=TARGET))
            workers[-1].may_end = True  # the next deadly job may be its first
        states = deadly.states()
        return all(
            states.get(job.job_id) in (JobState.COMPLETED, JobState.DEAD) for job in (*innocent, *poison)
        )

    for worker in workers:
        worker.may_end = True
    deadly.wait("all jobs completed or dead", all_ended, timeout=120)
    deadly.wait_committed()
    for job in poison:
        assert_poison(deadly, job)
    deaths = sum(not worker.running for worker in deadly.workers)
    assert deaths <= 4, "more than one worker for each deadly job that ran in one"
    assert_innocent(deadly, innocent)
    assert_nothing_lost(deadly)
    deadly.workers[:] = workers
    assert_clean_end(deadly)


def test_children_die_with_a_worker_that_is_killed(deadly: World) -> None:
    worker = deadly.start_worker(target=TARGET)
    held = publish(deadly, "process", [Deed(name=f"held-{n}", gate="go") for n in range(2)])
    wait_running(deadly, held)
    children = [run.pid for run in deadly.executions()]
    worker.kill()
    deadly.wait("the children are gone", lambda: not any(map(psutil.pid_exists, children)))
    deadly.open("go")
    deadly.start_worker(target=TARGET)
    deadly.wait_ended()
    for job in held:
        assert [run.attempt for run in deadly.executions(job_id=job.job_id)] == [1, 1]
    deadly.wait_committed()
    assert_clean_end(deadly)


def test_a_handler_that_nothing_can_interrupt_is_killed_at_its_time_limit(deadly: World) -> None:
    deadly.start_worker(target=TARGET)
    (job,) = publish(deadly, "limited", [Deed(name="spins", do="spin once")])
    deadly.wait_ended()
    assert [run.attempt for run in deadly.executions(job_id=job.job_id)] == [1, 2]
    story = deadly.story(job.job_id)
    assert story.state is JobState.COMPLETED
    assert story.crashes is None
    (failed,) = story.attempts
    assert failed.failure is not None
    assert failed.failure.error_class == "TimeoutError"
    assert 5 <= failed.duration < 60  # when it would have ended by itself
    deadly.wait_committed()
    assert_clean_end(deadly)


def test_effects_of_a_child_are_there_once_wherever_it_dies(deadly: World) -> None:
    expected = {
        "effect": ([1], None),
        "effect, killed inside": ([1, 2], 1),
        "effect, killed after": ([1], None),
    }
    deadly.start_worker(target=TARGET)
    jobs = publish(deadly, "process", [Deed(name=do, do=do) for do in expected])
    deadly.wait_ended()
    deadly.wait_committed()
    for job, (attempts, crashes) in zip(jobs, expected.values(), strict=True):
        assert [run.attempt for run in deadly.executions(job_id=job.job_id)] == attempts
        tokens = [effect.token for effect in deadly.effects() if effect.job_id == job.job_id]
        assert tokens == [len(attempts)]
        story = deadly.story(job.job_id)
        assert (story.state, story.crashes) == (JobState.COMPLETED, crashes)
    assert deadly.letters() == []
    assert_clean_end(deadly)
