"""Kafka or Postgres goes away, as a whole or for one worker, and comes back."""

from __future__ import annotations

import time

from pipeline.core.state import JobState
from tests.faults.case import Case, Loaded, scenario
from tests.faults.load import Load
from tests.harness.group import rebalances, wait_shared
from tests.harness.proxy import Loss
from tests.harness.requests import OFFSET_COMMIT, PRODUCE, kafka_request
from tests.harness.world import World

__all__: list[str] = []

# What a publish may take beyond its time limit until it says that it failed, on a loaded machine of two cores.
SLACK = 30.0
# What memory may grow by while jobs cannot be done, in MB: buffers are bounded.
GROWTH = 60.0
# How late a worker may get round to an answer that came before the server went.
READING = 5.0


def _published_in_time(world: World, load: Load) -> float:
    longest = max(load.refused, default=0.0)
    assert longest < float(str(world.settings["publisher.timeout"])) + SLACK
    return longest


def _restarted_kafka(case: Case, how: str) -> None:
    """No publish succeeds falsely, and no job pays for it."""
    world = case.world(settings={"publisher.timeout": 2})
    with case.loaded(world) as loaded, loaded.load.fault():
        getattr(case.site.kafka, how)()
        world.wait("a publish is refused", lambda: loaded.load.refused)
        case.site.kafka.start()
    _published_in_time(world, loaded.load)
    assert all(worker.said("started") for worker in world.workers)
    case.judge(loaded)


@scenario(11, "in order", quick=False)
def kafka_restarts(case: Case) -> None:
    _restarted_kafka(case, "stop")


@scenario(11, "kill -9")
def kafka_is_killed_and_restarts(case: Case) -> None:
    _restarted_kafka(case, "kill")


@scenario(12)
def kafka_is_down(case: Case) -> None:
    """A publish ends in time, with an error; workers burn no attempt, and keep their memory."""
    world = case.world(settings={"publisher.timeout": 5})
    with case.loaded(world) as loaded:
        before = loaded.watch.most_memory()
        with loaded.load.fault():
            case.site.kafka.stop()
            loaded.load.pass_time(case.scale.outage)
            case.site.kafka.start()
    case.figures.notes["seconds of a refused publish"] = round(_published_in_time(world, loaded.load), 1)
    _memory_is_flat(loaded, before)
    case.judge(loaded)


@scenario(13)
def kafka_is_frozen(case: Case) -> None:
    """The same, found by time limits, as connections stay open."""
    world = case.world(settings={"publisher.timeout": 5})
    with case.loaded(world) as loaded:
        before = loaded.watch.most_memory()
        with loaded.load.fault():
            case.site.kafka.pause()
            loaded.load.pass_time(case.scale.outage / 2)
            case.site.kafka.resume()
    case.figures.notes["seconds of a refused publish"] = round(_published_in_time(world, loaded.load), 1)
    _memory_is_flat(loaded, before)
    case.judge(loaded)


def _memory_is_flat(loaded: Loaded, before: float) -> None:
    """While it lasted. Afterwards a backlog fills the buffers, which are bounded by themselves."""
    since, until = loaded.load.faults[-1]
    during = [
        max(look.memory.values(), default=0.0) for look in loaded.watch.looks if since < look.at < until
    ]
    assert max(during, default=0.0) < before + GROWTH, f"{before:.0f} MB before, {max(during):.0f} MB during"


@scenario(17)
def a_worker_is_cut_off_from_kafka(case: Case) -> None:
    """It starts nothing once it cannot be a member any more; others do its share."""
    world = case.world()
    cut_off = world.start_worker(kafka__bootstrap_servers=case.site.kafka_by_proxy)
    with case.loaded(world, workers=1) as loaded, loaded.load.fault():
        case.site.kafka_proxy.cut()
        lost = time.time() + float(str(world.settings["worker.session_timeout"])) + 5
        loaded.load.pass_time(max(case.scale.outage, 20))
        healed = time.time()
        case.site.kafka_proxy.heal()
    late = [run for run in world.executions(pid=cut_off.pid) if lost < run.started < healed]
    assert not late, late
    assert loaded.load.done_during((lost, healed)) > 0
    case.judge(loaded)


@scenario(18)
def connections_are_reset_and_slow(case: Case) -> None:
    """In the middle of requests, and before their answers; what is sent again is there once."""
    proxied = case.site.kafka_by_proxy
    world = case.world(settings={"kafka.bootstrap_servers": proxied})
    proxy = case.site.kafka_proxy
    with case.loaded(world) as loaded, loaded.load.fault():
        for _ in range(3):
            for kind in (PRODUCE, OFFSET_COMMIT):
                for loss in (Loss.HALF, Loss.REQUEST, Loss.ANSWER):
                    trap = proxy.trap(kafka_request(kind), loss=loss)
                    world.wait(f"{loss} of request {kind} is lost", trap.is_sprung)
            proxy.reset()
        proxy.slow(0.1)
        loaded.load.pass_time(case.scale.outage / 4)
        proxy.heal()
    case.judge(loaded)


def _restarted_postgres(case: Case, how: str) -> None:
    """No job pays for it: nothing is started without its claim, and nothing that ran is an attempt more."""
    world = case.world()
    with case.loaded(world) as loaded, loaded.load.fault():
        getattr(case.site.postgres, how)()
        since = time.time() + READING
        loaded.load.pass_time(READING + 3)
        until = time.time()
        case.site.postgres.start()
    _nothing_new_began(world, since, until)
    assert not loaded.load.refused, "publishing needs only Kafka"
    case.judge(loaded)


def _nothing_new_began(world: World, since: float, until: float) -> None:
    """What had been claimed before may begin, as soon as those before it have given up; nothing else has a claim."""
    claimed = {
        (event["job_id"], event["token"]): move["at"].timestamp()
        for event in world.events()
        for move in event.get("moves", ())
        if move["state"] == JobState.RUNNING
    }
    begun = [run for run in world.executions() if since < run.started < until]
    new = [run for run in begun if claimed.get((run.job_id, run.token), until) > since]
    assert not new, f"{len(new)} runs of {len(begun)} began without a claim: {new[:3]}"


@scenario(21, "fast", quick=False)
def postgres_restarts(case: Case) -> None:
    _restarted_postgres(case, "stop")


@scenario(21, "immediate")
def postgres_is_killed_and_restarts(case: Case) -> None:
    _restarted_postgres(case, "kill")


@scenario(22)
def postgres_is_down(case: Case) -> None:
    """No handler runs without its claim; publishing goes on, and workers stay in their group."""
    world = case.world()
    with case.loaded(world) as loaded:
        before = loaded.watch.most_memory()
        wait_shared(world, *world.workers)
        moved_before = rebalances(world.workers)
        with loaded.load.fault():
            case.site.postgres.stop()
            since = time.time() + READING
            loaded.load.pass_time(READING + case.scale.outage)
            until = time.time()
            case.site.postgres.start()
    _nothing_new_began(world, since, until)
    assert not loaded.load.refused, "publishing needs only Kafka"
    assert rebalances(world.workers) == moved_before
    _memory_is_flat(loaded, before)
    case.judge(loaded)


@scenario(26)
def a_worker_is_cut_off_from_postgres(case: Case) -> None:
    """It starts nothing, and its lease runs out; what it held is done, once, by whoever has the record then."""
    world = case.world()
    cut_off = world.start_worker(postgres__dsn=case.site.postgres_by_proxy)
    with case.loaded(world, workers=1) as loaded:
        held = loaded.hold(6)
        mine = {run.job_id for run in world.executions(pid=cut_off.pid)} & loaded.ids(held)
        with loaded.load.fault():
            case.site.postgres_proxy.cut()
            since = time.time() + 2
            loaded.load.pass_time(max(case.scale.outage / 2, 12))
            world.open("go")
            loaded.load.pass_time(max(case.scale.outage / 2, 12))
            until = time.time()
            case.site.postgres_proxy.heal()
    late = [run for run in world.executions(pid=cut_off.pid) if since < run.started < until]
    assert not late, late
    taken = [run for run in world.executions() if run.job_id in mine and run.pid != cut_off.pid]
    case.figures.notes["taken over"] = len({run.job_id for run in taken if run.started < until})
    case.figures.notes["held"] = len(mine)
    assert loaded.load.done_during((since, until)) > 0
    case.judge(loaded)
