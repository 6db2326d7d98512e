"""Clocks that are wrong."""

from __future__ import annotations

from tests.faults.case import Case, scenario
from tests.harness.jobs import Task
from tests.harness.shifted import shift_clock

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
