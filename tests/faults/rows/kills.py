"""Workers are killed at the worst moments."""

from __future__ import annotations

from tests.faults.case import Case, scenario

__all__: list[str] = []


@scenario(1)
def a_worker_is_killed_while_its_handlers_run(case: Case) -> None:
    """Another runs its jobs in the same attempt, under the next token."""
    world = case.world()
    with case.loaded(world) as loaded:
        held = loaded.hold(6)
        victim = loaded.worker(loaded.holders(held).pop())
        lost = [run.job_id for run in world.executions(pid=victim.pid) if not run.ended]
        with loaded.load.fault():
            victim.kill()
            world.open("go")
        world.start_worker()
    for job in held:
        runs = world.executions(job_id=job.job_id)
        assert [run.attempt for run in runs] == ([1, 1] if job.job_id in lost else [1]), runs
        assert [run.token for run in runs] == ([1, 2] if job.job_id in lost else [1]), runs
    case.judge(loaded, killed=[victim.pid])
