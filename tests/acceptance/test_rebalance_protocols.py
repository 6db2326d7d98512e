"""Each way in which a group can share partitions: workers join, leave, die and freeze under load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from pipeline.core.state import JobState
from pipeline.embedded import EmbeddedKafka
from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_offsets_held,
    assert_one_effect_each,
    assert_runs,
)
from tests.harness.group import named, owned, wait_shared
from tests.harness.jobs import Task
from tests.harness.ledger import Acked, Execution
from tests.harness.processes import WorkerProcess
from tests.harness.stream import PublishStream
from tests.harness.world import World
from tests.servers import TestServers

pytestmark = pytest.mark.servers

PROTOCOLS = ["cooperative-sticky", "range", "consumer"]
# With the protocol of KIP-848 sessions are the broker's to choose, and 45 s unless it is told otherwise.
SESSIONS = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
BEAT = 120  # jobs published


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    folder = tmp_path_factory.mktemp("kafka") / "data"
    with EmbeddedKafka(folder, temporary=True, properties=SESSIONS) as server:
        yield server


NewGroup = Callable[..., World]


@pytest.fixture
def new_group(new_world: Callable[..., World], servers: TestServers, kafka: EmbeddedKafka) -> NewGroup:
    on = TestServers(kafka.bootstrap_servers, servers.postgres_dsn)

    def make(protocol: str, **settings: object) -> World:
        changes = {key.replace("__", "."): value for key, value in settings.items()}
        # Whatever a dead worker held runs in children at the same time: these jobs wait for one gate.
        places = {"worker.concurrency": 16, "worker.suspect_concurrency": 16}
        ours = {"worker.rebalance_protocol": protocol, **places}
        return new_world(on, settings={**ours, **changes})

    return make


def works(world: World, *workers: WorkerProcess) -> None:
    """They have a share of the main topic: each starts jobs from now on."""
    seen = {worker.pid: len(world.executions(pid=worker.pid)) for worker in workers}

    def all_work() -> bool:
        return all(len(world.executions(pid=pid)) >= count + 5 for pid, count in seen.items())

    world.wait(f"these work: {list(seen)}", all_work)


def beat(world: World) -> None:
    """As long as it takes to publish some more: the storm and its load keep step on any machine."""
    published = len(world.acked())
    world.wait("some more jobs are published", lambda: len(world.acked()) >= published + BEAT)


def short(number: int) -> Task:
    return Task(name=f"short-{number}", seconds=0.01)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go_all_the_time_and_each_job_is_run_once(
    new_group: NewGroup, protocol: str
) -> None:
    world = new_group(protocol)
    with world.sampler() as sampler, PublishStream(world, world.jobs.effect, short, rate=60):
        workers = [world.start_worker()]
        works(world, *workers)
        for _ in range(5):
            workers += [world.start_worker(), world.start_worker()]
            for _ in range(2):
                beat(world)
                assert workers.pop(0).stop() == 0
        works(world, *workers)
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, world.acked())
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def kill(_world: World, worker: WorkerProcess) -> None:
    worker.kill()


def freeze(world: World, worker: WorkerProcess) -> None:
    """Until others have taken over all that it runs."""
    worker.pause()
    held = {run.job_id for run in world.executions(pid=worker.pid) if not run.ended}
    # What had just been completed when it froze, without its end being noted, never runs again.
    world.wait("others run what it held", lambda: held <= _run_again(world) | _completed(world))
    worker.resume()


def _completed(world: World) -> set[str]:
    return {job_id for job_id, state in world.states().items() if state is JobState.COMPLETED}


def _run_again(world: World) -> set[str]:
    return {run.job_id for run in world.executions() if run.token > 1}


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [(protocol, kill) for protocol in PROTOCOLS] + [("range", freeze), ("consumer", freeze)],
)
def test_a_member_that_dies_or_freezes_under_load_costs_its_jobs_a_run_and_nothing_else(
    new_group: NewGroup, protocol: str, fault: Callable[[World, WorkerProcess], None]
) -> None:
    world = new_group(protocol)
    with world.sampler() as sampler, PublishStream(world, world.jobs.effect, short, rate=60):
        victim, other = world.start_worker(), world.start_worker()
        works(world, victim, other)
        held = world.publish(world.jobs.effect, [Task(name=f"held-{n}", gate="go") for n in range(6)])
        world.wait("all of these run", lambda: _started(world, held) == len(held))
        fault(world, victim)
        world.open("go")
        works(world, other)
        third = world.start_worker()
        works(world, other, third)
    world.wait_ended()
    world.wait_committed()
    runs = Counter(run.job_id for run in world.executions())
    assert max(runs.values()) <= 2, "a job was run more than once again"
    assert {run.attempt for run in world.executions()} == {1}
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_offsets_held(world, sampler.samples)
    if fault is freeze:
        world.wait("it is told", lambda: victim.said("lost") or victim.said("revoked"))
        _check_refusals(victim)
    assert_clean_end(world)


def _started(world: World, jobs: Sequence[Acked]) -> int:
    wanted = {job.job_id for job in jobs}
    return len({run.job_id for run in world.executions()} & wanted)


def _check_refusals(frozen: WorkerProcess) -> None:
    """What it ran while it was away counts for nothing: others have a newer token."""
    refused = frozen.said("settle_refused")
    assert all(entry["current_token"] > entry["token"] for entry in refused)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("end", ["finishes", "dies"])
def test_a_long_job_stays_with_its_worker_when_its_partition_moves_on(
    new_group: NewGroup, protocol: str, end: str
) -> None:
    """The new owner holds the record, runs what comes behind it, and takes the job over only from a dead worker."""
    world = new_group(protocol, worker__revoke_timeout=1)
    first = world.start_worker()
    long = world.publish(world.jobs.effect, [Task(name=f"long-{n}", gate="go") for n in range(6)])
    world.wait("all of these run", lambda: _started(world, long) == len(long))
    with world.sampler() as sampler:
        second = world.start_worker()
        world.wait("some partitions have moved", lambda: _main(second.said("assigned")))
        behind = world.publish(world.jobs.effect, [short(n) for n in range(90)])
        world.wait_ended(behind)
        moved = _main(second.said("assigned"))
        held = [job for job in long if f"{job.topic}/{job.partition}" in moved]
        assert held, "no partition of a long job has moved"
        assert _started(world, held) == len(held)
        assert max(Counter(run.job_id for run in world.executions()).values()) == 1
        if end == "dies":
            first.kill()
            world.wait("another runs them", lambda: len(_of(world, held)) == 2 * len(held))
        world.open("go")
        world.wait_ended()
        world.wait_committed()
    tokens = {run.token for run in _of(world, held)}
    assert tokens == ({1, 2} if end == "dies" else {1})
    if end == "finishes":
        assert_runs(world, world.acked())
        assert not first.said("settle_refused")
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def _main(entries: Sequence[dict[str, object]]) -> set[str]:
    """Partitions of main topics that were assigned."""
    return {name for name in named(entries) if ".normal/" in name}


def _of(world: World, jobs: Sequence[Acked]) -> list[Execution]:
    wanted = {job.job_id for job in jobs}
    return [run for run in world.executions() if run.job_id in wanted]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_that_is_back_in_time_finds_its_partitions_and_disturbs_nobody(
    new_group: NewGroup, protocol: str
) -> None:
    world = new_group(protocol, worker__session_timeout=30)
    with world.sampler() as sampler, PublishStream(world, world.jobs.effect, short, rate=60):
        first = world.start_worker(worker__static_member_id="one")
        second = world.start_worker(worker__static_member_id="two")
        works(world, first, second)
        wait_shared(world, first, second)
        before = owned(first)
        seen = len(second.said("assigned")), len(second.said("revoked"))
        assert first.stop() == 0
        again = world.start_worker(worker__static_member_id="one")
        works(world, again, second)
        wait_shared(world, again, second)
        assert (len(second.said("assigned")), len(second.said("revoked"))) == seen
        assert owned(again) == before
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, world.acked())
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def test_two_workers_of_one_static_name_cannot_both_be_members(new_group: NewGroup) -> None:
    world = new_group("cooperative-sticky")
    first = world.start_worker(worker__static_member_id="one")
    world.wait("it is a member", lambda: _main(first.said("assigned")))
    first.may_end = True
    second = world.start_worker(worker__static_member_id="one")
    assert first.wait() == 1
    assert "static consumer" in first.tail().lower() or "fenced" in first.tail().lower()
    jobs = world.publish(world.jobs.effect, [short(n) for n in range(20)])
    world.wait_ended(jobs)
    assert second.stop() == 0
