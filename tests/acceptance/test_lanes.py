"""What a worker does when its slots are lost, and how many jobs of a type it runs at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pipeline import load_settings
from pipeline.core.state import JobState
from tests.acceptance.deadly_app import LANES, PAIRS, TARGET, Deed, app, write_deed_schemas
from tests.harness.checks import assert_clean_end, assert_nothing_lost
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked, Execution
from tests.harness.world import World

pytestmark = pytest.mark.servers
NewWorld = Callable[..., World]


def test_a_worker_that_has_lost_most_of_its_threads_drains_and_leaves(new_world: NewWorld) -> None:
    world = new_world(policy=Policy(timeout=1.0), settings={"worker.concurrency": 3})
    crippled = world.start_worker()
    world.open("hang-2")  # only their first runs hang
    hanging = world.publish(world.jobs.plain, [Task(name="hangs", gate="hang")] * 2)
    beside = world.publish(world.jobs.asynchronous, [Task(name="beside", seconds=0.5)] * 10)
    crippled.may_end = True
    assert crippled.wait() == 1
    (told,) = crippled.said("crippled")
    assert "2 of 3 threads are lost" in told["message"]
    world.start_worker()
    world.wait_ended()
    world.wait_committed()
    for job in hanging:
        assert [run.attempt for run in world.executions(job_id=job.job_id)] == [1, 2]
        assert world.story(job.job_id).crashes is None
    for job in beside:
        assert {run.attempt for run in world.executions(job_id=job.job_id)} == {1}
    left_at = "select count(*) from {}.workers where left_at is not null".format(f'"{world.name}"')
    assert world.execute(left_at) == [(1,)], "it did not sign off"
    assert_nothing_lost(world)
    world.workers.remove(crippled)
    assert_clean_end(world)


def test_a_job_type_runs_as_many_at_a_time_as_it_says_and_others_do_not_wait(new_world: NewWorld) -> None:
    world = new_world()
    write_deed_schemas(world.folder / "schemas")
    app.configure(load_settings(environ=world.environment()))
    with app.publisher(source="driver") as publisher:

        def publish(job_type: str, count: int, *, gate: str = "") -> list[Acked]:
            declared = app.registry.job_type(job_type)
            deed = Deed(name=job_type, do="take a moment", gate=gate)
            return [Acked(*publisher.publish(declared, deed, tenant="acme")) for _ in range(count)]

        limited = publish(PAIRS.name, 40, gate="go")
        others = publish(LANES["async"].name, 40)
    world.note_acked([*limited, *others])
    world.start_worker(target=TARGET)
    world.wait_ended(others)
    world.wait("two of them run", lambda: len(_runs_of(world, PAIRS.name)) == 2)
    world.open("go")
    world.wait_ended()
    assert set(world.states().values()) == {JobState.COMPLETED}
    assert at_once(_runs_of(world, PAIRS.name)) == 2
    world.wait_committed()
    assert_clean_end(world)


def _runs_of(world: World, job_type: str) -> list[Execution]:
    return [run for run in world.executions() if run.job_type == job_type]


def at_once(runs: Sequence[Execution]) -> int:
    """How many of them ran at the same time, at most."""
    return max(sum(other.started <= run.started < other.ended for other in runs) for run in runs)
