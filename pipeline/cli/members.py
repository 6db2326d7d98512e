"""`pipeline worker --processes N`: a supervisor and N members, each of them a `pipeline worker` of its own."""

from __future__ import annotations

import sys

from pipeline.cli.common import Session
from pipeline.config.worker_section import WorkerSettings
from pipeline.core.clock import SystemClock
from pipeline.errors import ConfigError
from pipeline.runtime.lifecycle import stop_on_signals
from pipeline.runtime.supervisor import Supervisor

__all__ = ["run_members"]

LEAVING_SECONDS = 30.0  # what a member may need after its drain: last settles, commits, leaving the group


def run_members(session: Session, target: str, queue: str | None, *, processes: int) -> int:
    """Run until stopped; give the exit code. Raises `ConfigError`. The application is imported by the members only."""
    worker = session.settings.worker
    commands = [
        _command(session, target, queue, assignments=_own(worker, number, processes))
        for number in range(processes)
    ]
    grace = worker.drain_timeout + LEAVING_SECONDS
    supervisor = Supervisor(commands, grace=grace, clock=SystemClock())
    with stop_on_signals(supervisor.stop):
        return supervisor.run()


def _command(session: Session, target: str, queue: str | None, *, assignments: list[str]) -> list[str]:
    own = [word for assignment in assignments for word in ("--set", assignment)]
    queued = ["--queue", queue] if queue is not None else []
    return [sys.executable, "-m", "pipeline", *session.flags, *own, "worker", target, *queued, "--member"]


def _own(worker: WorkerSettings, number: int, processes: int) -> list[str]:
    """The settings that differ from member to member."""
    own: list[str] = []
    if worker.http_port:
        if worker.http_port + processes > 65_536:
            raise ConfigError(
                f"worker.http_port is {worker.http_port}; allowed with {processes} processes, which take a port each: "
                f"at most {65_536 - processes}"
            )
        own.append(f"worker.http_port={worker.http_port + number}")
    if worker.static_member_id:
        own.append(f"worker.static_member_id={worker.static_member_id}-{number}")
    return own
