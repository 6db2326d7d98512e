"""Clocks that are wrong, and replays that are killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event

from pipeline.core.state import JobState
from tests.faults.case import Case, scenario
from tests.harness.checks import assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.proxy import Loss
from tests.harness.requests import PRODUCE, kafka_request
from tests.harness.shifted import shift_clock
from tests.harness.world import World

__all__: list[str] = []

TWO_HOURS = 7200.0


@scenario(32, "ahead")
def a_clock_is_two_hours_ahead(case: Case) -> None:
    _shifted(case, [TWO_HOURS])


@scenario(32, "behind")
def a_clock_is_two_hours_behind(case: Case) -> None:
    _shifted(case, [-TWO_HOURS])


@scenario(32, "jumping")
def a_clock_jumps(case: Case) -> None:
    _shifted(case, [TWO_HOURS, -TWO_HOURS, 0.0, 60.0])


def _shifted(case: Case, shifts: list[float]) -> None:
    """Leases and due times follow the clock of Postgres: no lease ends, no retry is early or late."""
    world = case.world()
    shift_clock(world.folder, 0.0)
    world.start_worker(program=("-m", "tests.harness.shifted"))
    with case.loaded(world, workers=1) as loaded, loaded.load.fault():
        for shift in shifts:
            shift_clock(world.folder, shift)
            retried = world.publish(world.jobs.effect, [Task(name=f"fails-{n}", fails=1) for n in range(9)])
            world.wait_ended(retried, timeout=30)
            loaded.load.told.update((job.job_id, Task(name="", fails=1)) for job in retried)
            loaded.load.pass_time(case.scale.outage / 6)
    case.judge(loaded)


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
        again = world.cli("dlq", "replay", "--all", "--execute")
        assert again.code == 0, again.err
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


def _replay_all(world: World, count: int) -> None:
    ended = world.cli("dlq", "replay", "--all", "--execute")
    assert (ended.code, ended.out.count(f"replayed: {count} of")) == (0, 1), ended.out + ended.err


def _replay(
    world: World, name: str, *, rate: float = 0.0, settings: Mapping[str, object] | None = None
) -> WorkerProcess:
    pace = ["--rate", f"{rate:g}"] if rate else []
    return WorkerProcess(
        [sys.executable, "-m", "pipeline", "dlq", "replay", "--all", "--execute", *pace],
        environment=world.environment(settings),
        log=world.folder / f"replay-{name}.log",
    )


def _completed(world: World, jobs: list[Acked]) -> int:
    states = world.states()
    return sum(states.get(job.job_id) is JobState.COMPLETED for job in jobs)
