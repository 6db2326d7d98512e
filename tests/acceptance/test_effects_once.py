"""An effect through `ctx.transaction()` is there exactly once, at whatever step its worker is killed or frozen."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from zlib import crc32

import psutil
import psycopg
import pytest

from pipeline import load_settings
from pipeline.core.state import JobState
from tests.acceptance.effects_app import AT_COMMIT, LANES, STEPS, TARGET, Work, app, write_work_schemas
from tests.harness.checks import assert_clean_end
from tests.harness.ledger import Acked, Ledger
from tests.harness.processes import WorkerProcess
from tests.harness.world import World

pytestmark = pytest.mark.servers

# A trigger that is deferred runs within COMMIT, when nothing is durable yet; it waits for a lock that the test holds.
_HOLD_COMMITS = """
    alter table {schema}.effects add column held integer;
    create function {schema}.wait_for_test() returns trigger language plpgsql as $$
    begin
        perform pg_advisory_xact_lock({lock}, new.held);
        return null;
    end $$;
    create constraint trigger wait_for_test after insert on {schema}.effects
        deferrable initially deferred for each row when (new.held is not null) execute function {schema}.wait_for_test()
"""


class Case(NamedTuple):
    """A job, where its handler runs, and the step at which its first run is stopped."""

    job: Acked
    lane: str
    step: str


@pytest.fixture
def steps(new_world: Callable[..., World]) -> World:
    # What is stopped within its transaction is idle for as long as the test takes.
    world = new_world(settings={"worker.process_concurrency": 2, "postgres.handler_idle_timeout": 600})
    write_work_schemas(world.folder / "schemas")
    app.configure(load_settings(environ=world.environment()))
    world.execute(_HOLD_COMMITS.format(schema=f'"{world.name}"', lock=lock_of(world)))
    return world


def lock_of(world: World) -> int:
    """The first number of the locks of this test."""
    return crc32(world.name.encode()) >> 1


def publish_all(world: World) -> list[Case]:
    with app.publisher(source="driver") as publisher:
        cases = [
            Case(
                Acked(*publisher.publish(job_type, Work(name=f"{lane}-{step}", step=step), tenant=step)),
                lane,
                step,
            )
            for lane, job_type in LANES.items()
            for step in (*STEPS, *AT_COMMIT)
        ]
    world.note_acked([case.job for case in cases])
    return cases


def start_victim(world: World) -> WorkerProcess:
    """It commits no offset while it is watched: what it completes is fetched again."""
    steps = len(STEPS) + len(AT_COMMIT)
    return world.start_worker(target=TARGET, worker__commit_interval=600, worker__process_concurrency=steps)


@contextmanager
def commits_held(world: World) -> Iterator[psycopg.Connection[Any]]:
    """Nothing of `AT_COMMIT` gets through its COMMIT before the lock is given up, by its number in there."""
    with psycopg.connect(world.servers.postgres_dsn, autocommit=True) as connection:
        for number in range(len(AT_COMMIT)):
            connection.execute("select pg_advisory_lock(%s, %s)", [lock_of(world), number])
        yield connection


def waiting(world: World, number: int) -> list[int]:
    """The server's processes that wait for that lock."""
    found = world.execute(
        "select pid from pg_locks where locktype = 'advisory' and not granted and classid = %s and objid = %s",
        lock_of(world),
        number,
    )
    return [row[0] for row in found]


def wait_all_stopped(world: World, cases: list[Case]) -> None:
    """Each job is at its step, in each lane."""
    stopped = Ledger(world.folder / "stopped")
    settled = {case.job.job_id for case in cases if case.step == "settled"}
    wanted = {case.job.job_id for case in cases if case.step in STEPS} - settled

    def all_are() -> bool:
        there = {entry["job_id"] for entry in stopped.entries()}
        states = world.states()
        return (
            wanted <= there
            and all(states.get(job_id) is JobState.COMPLETED for job_id in settled)
            and all(len(waiting(world, number)) == len(LANES) for number in range(len(AT_COMMIT)))
        )

    world.wait("every job is at its step", all_are, timeout=60)


def end_commits(world: World, lock: psycopg.Connection[Any]) -> None:
    """Let the server carry out those of `commit`, and end the sessions of `cut` before they are."""
    commit, cut = range(len(AT_COMMIT))
    for backend in waiting(world, cut):
        world.execute("select pg_terminate_backend(%s)", backend)
    world.wait("the sessions are gone", lambda: not waiting(world, cut))
    lock.execute("select pg_advisory_unlock_all()")
    world.wait("the commits are through", lambda: not waiting(world, commit))


def assert_once(world: World, cases: list[Case], *, finished: tuple[str, ...]) -> None:
    """One effect for each job: of its first run where that was `finished` in the store, else of its second."""
    effects: dict[str, list[int]] = {case.job.job_id: [] for case in cases}
    for effect in world.effects():
        effects[effect.job_id].append(effect.token)
    found = {(case.lane, case.step): effects[case.job.job_id] for case in cases}
    assert found == {(case.lane, case.step): [1 if case.step in finished else 2] for case in cases}
    assert set(world.states().values()) == {JobState.COMPLETED}
    assert {run.attempt for run in world.executions()} == {1}, "no attempt was burnt"


def family(worker: WorkerProcess) -> list[psutil.Process]:
    parent = psutil.Process(worker.pid)
    return [parent, *parent.children(recursive=True)]


def test_an_effect_is_there_once_when_its_worker_is_killed_at_any_step(steps: World) -> None:
    cases = publish_all(steps)
    victim = start_victim(steps)
    with commits_held(steps) as lock:
        wait_all_stopped(steps, cases)
        victim.kill()
        end_commits(steps, lock)
    steps.start_worker(target=TARGET)
    steps.wait_ended()
    steps.wait_committed()
    assert_once(steps, cases, finished=("commit", "after", "settled"))
    assert_clean_end(steps)


def test_an_effect_is_there_once_when_its_worker_is_frozen_at_any_step_and_wakes_up_later(
    steps: World,
) -> None:
    cases = publish_all(steps)
    victim = start_victim(steps)
    with commits_held(steps) as lock:
        wait_all_stopped(steps, cases)
        frozen = family(victim)
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        end_commits(steps, lock)
    steps.start_worker(target=TARGET)
    steps.wait_ended()
    steps.open("go")
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    steps.wait(
        "every first run has come to its end",
        lambda: all(run.ended for run in steps.executions() if run.token == 1),
    )
    late = {case.job.job_id for case in cases if case.step in ("claimed", "begun", "written")}
    steps.wait("the refusals are told", lambda: len(victim.said("transaction_refused")) >= len(late))
    assert {entry["job_id"] for entry in victim.said("transaction_refused")} == late
    assert victim.stop() == 0, victim.tail()
    steps.wait_committed()
    assert_once(steps, cases, finished=("commit", "after", "settled"))
    assert_clean_end(steps)
