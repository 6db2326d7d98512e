"""The pools of child processes that a worker has: one for job types that run in a process, one for suspects."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from pipeline.config import Settings
from pipeline.config.transfer import pack_settings
from pipeline.core.clock import Clock
from pipeline.errors import ConfigError
from pipeline.runtime.executors import Executor
from pipeline.runtime.executors.base import OnRuns
from pipeline.runtime.executors.processes import PoolSettings, ProcessExecutor, SuspectExecutor
from pipeline.runtime.executors.remote import ChildProcess
from pipeline.runtime.handlers import PROCESS, SUSPECT, Registry

__all__ = ["ChildPools"]

IDLE_SECONDS = 60.0  # suspects are rare: their children do not stay


class ChildPools:
    """Builds both. `target` (`module:attribute`) is what a child imports to find the handlers; without it there is no child."""

    def __init__(self, target: str | None, settings: Settings, registry: Registry, *, worker_id: str) -> None:
        self._target = target
        self._settings = settings
        self._registry = registry
        self._worker_id = worker_id

    @property
    def isolate(self) -> bool:
        """Whether suspects can be run apart."""
        return self._target is not None

    def executors(
        self, *, clock: Clock, alive: Callable[[], bool], on_runs: OnRuns, on_room: Callable[[], None]
    ) -> dict[str, Executor]:
        """By lane. Raises `ConfigError` when a job type wants a process and there can be none."""
        wanting = [handler.job_type.name for handler in self._registry.handlers() if handler.lane == PROCESS]
        if self._target is None:
            if wanting:
                raise ConfigError(
                    f"target of the worker is None; job types that run in a process ({', '.join(wanting)}) need the "
                    "name under which a child process finds the application: module:attribute"
                )
            return {}
        new_child = _new_child(self._target, self._settings, worker_id=self._worker_id)
        kinds = [(PROCESS, ProcessExecutor, self._for_processes())] if wanting else []
        kinds.append((SUSPECT, SuspectExecutor, self._for_suspects()))
        return {
            lane: kind(pool, new_child=new_child, clock=clock, alive=alive, on_runs=on_runs, on_room=on_room)
            for lane, kind, pool in kinds
        }

    def _for_processes(self) -> PoolSettings:
        worker = self._settings.worker
        slots = worker.process_concurrency or _cores()
        return PoolSettings(slots, worker.batch_max, worker.process_max_jobs)

    def _for_suspects(self) -> PoolSettings:
        worker = self._settings.worker
        return PoolSettings(worker.suspect_concurrency, 0, worker.process_max_jobs, IDLE_SECONDS)


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _new_child(target: str, settings: Settings, *, worker_id: str) -> Callable[[], ChildProcess]:
    hello = {
        "target": target,
        "path": list(sys.path),
        "settings": pack_settings(settings),
        "worker": worker_id,
    }
    return partial(ChildProcess, [sys.executable, "-m", "pipeline.child"], hello)
