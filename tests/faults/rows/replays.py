"""Replays that are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from signal import SIGKILL
from threading import Event

from pipeline.core.ports import Outgoing
from pipeline.core.state import JobState
from pipeline.core.topics import TopicSpec
from tests.faults.case import Case, scenario
from tests.harness.checks import assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.proxy import Loss
from tests.harness.raw import write
from tests.harness.requests import PRODUCE, kafka_request
from tests.harness.world import World
from tests.unit.foreign_letters import foreign_record, spring_headers

__all__: list[str] = []


@scenario(38)
def replays_are_killed_and_meet(case: Case) -> None:
    """A replay is killed as its letters are written, before it knows; then two at once do the rest: each once in effect."""
    world = case.world()
    count = min(1000, max(60, case.scale.jobs // 20))
    dead = world.publish(world.jobs.effect, [Task(name=f"broken-{n}", fails=-1) for n in range(count)])
    world.start_worker()
    with world.sampler() as sampler:
        world.wait_ended(timeout=120)
        world.open("fixed")
        proxied = {"kafka.bootstrap_servers": case.site.kafka_by_proxy}
        wanted = kafka_request(PRODUCE, containing=world.names.main("default").encode())

        def is_due(request: bytes) -> bool:
            """Asked as it writes: it does not stand still while it is looked at from elsewhere."""
            return wanted(request) and _completed(world, dead) >= count // 3

        def kill() -> None:
            victim.kill()

        trap = case.site.kafka_proxy.trap(is_due, kill, loss=Loss.ANSWER)
        victim = _replay(world, "killed", rate=count / 5, settings=proxied)
        world.wait("it is killed with a third replayed", lambda: trap.sprung and not victim.running)
        assert _completed(world, dead) < count
        both = [_replay(world, f"beside-{n}", rate=count / 2) for n in range(2)]
        assert [each.wait(120) for each in both] == [0, 0], both[0].tail() + both[1].tail()
        world.wait("all completed", lambda: _completed(world, dead) == count, timeout=120)
        _replay_all(world, 0)
        world.wait_committed()
    assert_runs(world, dead, attempts=[1, 2, 3, 1])
    case.judge_world(world, sampler)
    case.figures.redelivered -= count  # the first attempts of the replays are no redeliveries


@scenario(38, "records written late", quick=False)
def a_killed_replay_is_written_late(case: Case) -> None:
    """Its records are under way when it is killed; they arrive when the letters were sent again and have died of it."""
    world = case.world(policy=Policy(max_attempts=1))
    names = [f"broken-{n}" for n in range(6)]
    dead = world.publish(world.jobs.effect, [Task(name=name, fails=-1) for name in names], tenant="tenant-0")
    world.start_worker()
    with world.sampler() as sampler, _under_way() as arrived:
        world.wait_committed()

        def kill() -> None:
            victim.kill()
            arrived.wait(120)

        main = world.names.main("default")
        trap = case.site.kafka_proxy.trap(kafka_request(PRODUCE, containing=main.encode()), kill)
        in_one_request = {"linger.ms": "100"}
        victim = _replay(
            world,
            "killed",
            settings={
                "kafka.bootstrap_servers": case.site.kafka_by_proxy,
                "kafka.options": in_one_request,
            },
        )
        world.wait("it is killed", lambda: trap.sprung and not victim.running)
        _replay_all(world, len(dead))
        world.wait_committed()
        arrived.set()
        world.wait("its records arrive", lambda: len(world.records(main)) == 3 * len(dead))
        world.wait_committed()
        assert_runs(world, dead, attempts=[1, 1])
        world.open("fixed")
        _replay_all(world, len(dead))
        world.wait_committed()
    assert_runs(world, dead, attempts=[1, 1, 1])
    case.judge_world(world, sampler)
    case.figures.redelivered -= 2 * len(dead)  # the attempts of the replays are no redeliveries


@contextmanager
def _under_way() -> Iterator[Event]:
    """Set at the end, however that comes: nothing may wait for it any longer then."""
    arrived = Event()
    try:
        yield arrived
    finally:
        arrived.set()


@scenario(38, "letters of others", quick=False)
def replays_of_letters_of_others_are_killed(case: Case) -> None:
    """No rule keeps their consumers from working twice: each letter is written home once, whether it had arrived or not."""
    world = case.world()
    home, count = f"{world.name}-orders", 60
    world.admin.create([TopicSpec(home, 1, 1)])
    try:
        _bury_others(world, home, count)
        for name, loss in (("arrived", Loss.ANSWER), ("lost", Loss.REQUEST)):
            _kill_at_third_write(case, world, home, name, loss)
        last = _replay(world, "last")
        assert last.wait(120) == 0, last.tail()
        _replay_all(world, 0)
        times = Counter(record.key for record in world.records(home))
    finally:
        world.admin.delete([home])
    case.figures.notes["letters of others"] = count
    case.figures.lost += count - len(times)
    case.figures.doubled += sum(times.values()) - len(times)
    assert times == {b"%d" % number: 1 for number in range(count)}


def _bury_others(world: World, home: str, count: int) -> None:
    """Letters of Spring from its topic `home`, told apart by their keys."""
    letters = [
        foreign_record(spring_headers(topic=home, offset=number), key=b"%d" % number)
        for number in range(count)
    ]
    write(
        world, [Outgoing(world.names.dlq("default"), each.key, each.value, each.headers) for each in letters]
    )


def _kill_at_third_write(case: Case, world: World, home: str, name: str, loss: Loss) -> None:
    """A replay in many batches; the third of its requests arrives, or does not, and it never knows."""
    writes = 0
    is_write = kafka_request(PRODUCE, containing=home.encode())

    def is_third(request: bytes) -> bool:
        nonlocal writes
        writes += is_write(request)
        return writes == 3

    def kill() -> None:
        victim.kill()

    trap = case.site.kafka_proxy.trap(is_third, kill, loss=loss)
    victim = _replay(world, name, rate=10, settings={"kafka.bootstrap_servers": case.site.kafka_by_proxy})
    code = victim.wait(60)
    assert (code, trap.sprung) == (-SIGKILL, 1), victim.tail()


def _replay_all(world: World, count: int) -> None:
    ended = world.cli("dlq", "replay", "--all", "--execute")
    assert (ended.code, ended.out.count(f"replayed: {count} of")) == (0, 1), ended.out + ended.err


def _replay(
    world: World, name: str, *, rate: float = 0.0, settings: Mapping[str, object] | None = None
) -> WorkerProcess:
    pace = ["--rate", f"{rate:g}"] if rate else []
    return world.start_command(
        "dlq", "replay", "--all", "--execute", *pace, settings=settings, log=f"replay-{name}.log"
    )


def _completed(world: World, jobs: list[Acked]) -> int:
    states = world.states()
    return sum(states.get(job.job_id) is JobState.COMPLETED for job in jobs)
