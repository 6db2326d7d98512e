"""Kafka or Postgres goes away and comes back."""

from __future__ import annotations

from tests.faults.case import Case, scenario

__all__: list[str] = []


def _stopped_postgres(case: Case, how: str) -> None:
    """No job pays for it: nothing is started without its claim, and nothing that ran is an attempt more."""
    world = case.world()
    with case.loaded(world) as loaded, loaded.load.fault():
        getattr(case.site.postgres, how)()
        case.site.postgres.start()
    assert all(worker.running for worker in world.workers)
    case.judge(loaded)


@scenario(21, "fast")
def postgres_restarts(case: Case) -> None:
    _stopped_postgres(case, "stop")


@scenario(21, "immediate")
def postgres_is_killed_and_restarts(case: Case) -> None:
    _stopped_postgres(case, "kill")
