"""`pipeline worker --processes N`: members that die are replaced, and all leave together."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from typing import Any

import psutil
import pytest

from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_offsets_held,
    assert_one_effect_each,
    assert_runs,
)
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.stream import PublishStream
from tests.harness.world import World

pytestmark = pytest.mark.servers


def supervise(world: World, *, processes: int = 3, **settings: Any) -> WorkerProcess:
    return world.start_worker("--processes", str(processes), **settings)


def members(supervisor: WorkerProcess) -> dict[int, int]:
    """The process of each member that was started last."""
    return {entry["member"]: entry["member_pid"] for entry in supervisor.said("member_started")}


def work(world: World, pids: set[int]) -> None:
    """Each of these processes starts jobs from now on."""
    seen = {pid: len(world.executions(pid=pid)) for pid in pids}

    def all_work() -> bool:
        return all(len(world.executions(pid=pid)) >= count + 5 for pid, count in seen.items())

    world.wait(f"processes {pids} work", all_work)


def short(number: int) -> Task:
    return Task(name=f"short-{number}", seconds=0.01)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_member_that_is_killed_under_load_is_replaced_and_nothing_is_lost(world: World) -> None:
    with world.sampler() as sampler, PublishStream(world, world.jobs.effect, short, rate=80):
        supervisor = supervise(world)
        world.wait("three members", lambda: len(members(supervisor)) == 3)
        first = members(supervisor)
        work(world, set(first.values()))
        os.kill(first[1], signal.SIGKILL)
        world.wait("another one takes its place", lambda: members(supervisor)[1] != first[1])
        work(world, set(members(supervisor).values()))
    world.wait_ended()
    world.wait_committed()
    (died,) = supervisor.said("member_died")
    assert (died["member"], died["member_pid"], died["exit_code"]) == (1, first[1], -signal.SIGKILL)
    assert {number: pid for number, pid in members(supervisor).items() if number != 1} == {
        number: pid for number, pid in first.items() if number != 1
    }
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)
    assert all(map(is_gone, members(supervisor).values()))


def workers_of_nine(world: World) -> int:
    """How many processes it takes to run nine jobs, one of each tenant."""
    jobs = world.publish(world.jobs.plain, [Task(name=f"look-{n}") for n in range(9)])
    world.wait_ended(jobs)
    wanted = {job.job_id for job in jobs}
    return len({run.pid for run in world.executions() if run.job_id in wanted})


def hold(world: World, **settings: object) -> tuple[WorkerProcess, list[Acked]]:
    """Two members with jobs in their hands."""
    supervisor = supervise(world, processes=2, worker__concurrency=16, **settings)
    world.wait("two members work", lambda: workers_of_nine(world) == 2)
    held = world.publish(world.jobs.effect, [Task(name=f"held-{n}", gate="go") for n in range(9)])
    ids = {job.job_id for job in held}
    world.wait("all of these run", lambda: ids <= {run.job_id for run in world.executions()})
    return supervisor, held


def test_one_sigterm_lets_all_members_drain(world: World) -> None:
    supervisor, held = hold(world)
    supervisor.terminate()
    world.wait("both drain", lambda: len(supervisor.said("draining")) == 2)
    world.open("go")
    assert supervisor.wait() == 0, supervisor.tail()
    assert_runs(world, held)
    assert_one_effect_each(world, held)
    assert_clean_end(world)


def test_a_second_sigterm_makes_all_members_leave_at_once(world: World) -> None:
    supervisor, held = hold(world, worker__drain_timeout=120)
    supervisor.terminate()
    world.wait("both drain", lambda: len(supervisor.said("draining")) == 2)
    supervisor.terminate()
    assert supervisor.wait(60) == 0, supervisor.tail()
    world.open("go")
    world.start_worker()
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, held, attempts=(1, 1))
    assert_one_effect_each(world, held)
    assert_clean_end(world)


def test_members_end_when_their_supervisor_is_killed(world: World) -> None:
    supervisor = supervise(world, processes=2)
    world.wait("two members", lambda: len(supervisor.said("started")) == 2)
    pids = members(supervisor).values()
    jobs = world.publish(world.jobs.effect, [short(n) for n in range(30)])
    world.wait_ended(jobs)
    supervisor.kill()
    world.wait("both have ended", lambda: all(map(is_gone, pids)))
    assert len(supervisor.said("stopped")) == 2, "they did not drain"
    assert_runs(world, jobs)
    assert_clean_end(world)


def test_each_member_has_a_port_and_a_static_name_of_its_own(world: World) -> None:
    port = _free_ports(2)
    supervisor = supervise(world, processes=2, worker__http_port=port, worker__static_member_id="web")
    for number in range(2):
        world.wait(f"member {number} is ready", lambda n=number: _is_ready(port + n))  # type: ignore[misc]
    assert sorted(entry["port"] for entry in supervisor.said("http")) == [port, port + 1]
    world.wait("both work, which two of one name could not", lambda: workers_of_nine(world) == 2)
    world.wait_committed()
    assert_clean_end(world)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    for port in range(21_000, 30_000, 7):
        try:
            for number in range(count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + number))
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")
