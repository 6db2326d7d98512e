"""Jobs of a type with `order="key"`: one of a key at a time, in the order published, whatever happens to them and to workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from pipeline.core.state import JobState
from tests.acceptance.ordered_app import (
    BASE,
    MAX_ATTEMPTS,
    TARGET,
    Entry,
    entries_of,
    prepare,
    publish,
)
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_offsets_held
from tests.harness.ledger import Acked, Execution
from tests.harness.processes import WorkerProcess
from tests.harness.world import World

pytestmark = pytest.mark.servers

PAUSE = 10.0  # many times what the jobs of other keys take meanwhile


@pytest.fixture
def ordered(new_world: Callable[..., World]) -> World:
    world = new_world(settings={"worker.revoke_timeout": 1})
    prepare(world)
    return world


def start(world: World, **settings: Any) -> WorkerProcess:
    return world.start_worker(target=TARGET, **settings)


def runs_of(world: World, name: str) -> list[Execution]:
    return [run for run in world.executions() if run.name == name]


def assert_in_order(world: World, entries: Sequence[Entry]) -> None:
    """Each entry that can succeed took effect once, and those of an account in the order published."""
    expected: dict[str, list[int]] = {}
    for entry in entries:
        if entry.fails < MAX_ATTEMPTS:
            expected.setdefault(entry.account, []).append(entry.number)
    assert entries_of(world) == expected


def assert_one_at_a_time(world: World, killed: Sequence[int] = ()) -> None:
    """No run of an account began before the one before it had ended. Those of killed workers have no end."""
    last: dict[str, Execution] = {}
    for run in world.executions():
        account = run.name.split("/")[0]
        before = last.get(account)
        if before is not None and before.pid not in killed:
            assert before.ended, f"{before} has no end, and {run} began"
            assert run.started >= before.ended, f"{run} began before the end of {before}"
        last[account] = run


def assert_attempts_honest(world: World, entries: Sequence[Entry], acked: Sequence[Acked]) -> None:
    """A lost run is run again as the same attempt; else each run is the attempt after the one before it."""
    runs: dict[str, list[int]] = {}
    for run in world.executions():
        runs.setdefault(run.job_id, []).append(run.attempt)
    for entry, job in zip(entries, acked, strict=True):
        wanted = list(range(1, min(entry.fails + 1, MAX_ATTEMPTS) + 1))
        assert sorted(set(runs[job.job_id])) == wanted, (entry, runs[job.job_id])
        assert runs[job.job_id] == sorted(runs[job.job_id]), (entry, runs[job.job_id])


def test_a_failing_job_holds_back_its_key_and_no_other(ordered: World) -> None:
    world = ordered
    start(world)
    entries = [Entry(account="slow", number=0, fails=2, pause=PAUSE)]
    entries += [Entry(account="slow", number=n) for n in range(1, 5)]
    entries += [Entry(account=f"quick-{n % 20}", number=n // 20) for n in range(200)]
    with world.sampler() as sampler:
        acked = publish(world, entries, tenants=1)
        world.wait_ended(timeout=90)
        world.wait_committed()
    assert_in_order(world, entries)
    assert_one_at_a_time(world)
    assert_attempts_honest(world, entries, acked)
    first = runs_of(world, "slow/0")
    waits = [later.started - sooner.ended for sooner, later in pairwise(first)]
    early = [wanted - wait for wanted, wait in zip([BASE, PAUSE], waits, strict=True)]
    assert max(early) <= 0, f"retries came too early by so many seconds: {early}"
    quick_ends = [run.ended for run in world.executions() if run.name.startswith("quick")]
    assert sum(end < first[-1].started for end in quick_ends) > 100, "other keys waited for it"
    assert not any(world.records(world.names.retry("default", tier)) for tier in (1, 2, 4))
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def test_a_job_that_dies_lets_the_next_of_its_key_go(ordered: World) -> None:
    world = ordered
    start(world)
    entries = [Entry(account="a", number=n, fails=MAX_ATTEMPTS if n == 1 else 0) for n in range(4)]
    acked = publish(world, entries)
    world.wait_ended()
    assert world.states()[acked[1].job_id] is JobState.DEAD
    assert_in_order(world, entries)
    assert_attempts_honest(world, entries, acked)
    story = world.story(acked[1].job_id)
    assert [attempt.attempt for attempt in story.attempts] == [1, 2, 3]
    assert_nothing_lost(world)
    replayed = world.cli("dlq", "replay", "--all", "--execute")
    assert replayed.code == 0, replayed.err
    world.wait("it has been run again", lambda: len(runs_of(world, "a/1")) == 2 * MAX_ATTEMPTS)
    assert [run.attempt for run in runs_of(world, "a/1")] == [1, 2, 3, 1, 2, 3]


def test_the_next_owner_of_the_partition_keeps_the_wait_the_attempt_and_the_order(ordered: World) -> None:
    world = ordered
    first = start(world)
    # The second failure is followed by a wait of 0.8 s. Its worker leaves as it fails, so the partition moves in the middle of it.
    entries = [
        Entry(account="a", number=0, fails=2, gate="go"),
        *(Entry(account="a", number=n) for n in (1, 2)),
    ]
    acked = publish(world, entries)
    world.open("go-1")
    world.wait("its second attempt runs", lambda: len(runs_of(world, "a/0")) == 2)
    first.terminate()
    world.wait("it drains", lambda: first.said("draining"))
    world.open("go-2")
    assert first.wait() == 0
    world.open("go-3")
    second = start(world)
    world.wait_ended()
    world.wait_committed()
    runs = runs_of(world, "a/0")
    assert [run.attempt for run in runs] == [1, 2, 3]
    assert [run.pid for run in runs] == [first.pid, first.pid, second.pid]
    assert runs[2].started - runs[1].ended >= 2 * BASE
    assert_in_order(world, entries)
    assert_one_at_a_time(world)
    assert_attempts_honest(world, entries, acked)
    assert_clean_end(world)


def test_each_key_stays_in_order_while_jobs_fail_and_workers_are_killed_join_and_leave(
    ordered: World,
) -> None:
    world = ordered
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    entries = [
        Entry(
            account=f"account-{account}",
            number=number,
            fails=chance.choice([0] * 14 + [1, 2, MAX_ATTEMPTS]),
            seconds=chance.choice([0, 0, 0.01, 0.03]),
        )
        for number in range(25)
        for account in range(30)
    ]
    killed: list[int] = []
    with world.sampler() as sampler:
        workers = [start(world), start(world)]
        acked = publish(world, entries)
        for part in range(1, 4):
            _wait_done(world, part * 150)
            victim = workers.pop(0)
            victim.pause()  # or it could start one more child between the look and its end
            killed += [victim.pid, *_children_of(world, victim)]
            victim.kill()
            workers.append(start(world))
        _wait_done(world, 600)
        assert workers.pop(0).stop() == 0
        workers.append(start(world))
        world.wait_ended(timeout=120)
        world.wait_committed()
    assert_in_order(world, entries)
    assert_one_at_a_time(world, killed)
    assert_attempts_honest(world, entries, acked)
    assert_nothing_lost(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def _wait_done(world: World, count: int) -> None:
    world.wait(f"{count} are done", lambda: sum(map(len, entries_of(world).values())) >= count, timeout=90)


def _children_of(world: World, worker: WorkerProcess) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(worker.pid).children(recursive=True)]
