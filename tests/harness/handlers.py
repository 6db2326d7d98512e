"""The worker's side: `pipeline worker tests.harness.handlers:app`, with the environment that a `World` gives.

Each run notes its start and its end in the ledger of executions, outside of everything that is tested.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pipeline import Context
from tests.harness.jobs import Policy, Task, declare
from tests.harness.ledger import Ledger, note_run

__all__ = ["app"]

jobs = declare(Policy.from_environment())
app = jobs.app

_FOLDER = Path(os.environ["HARNESS_FOLDER"])
_EFFECTS = os.environ["HARNESS_EFFECTS"]
_EXECUTIONS = Ledger(_FOLDER / "executions")
_STEP = 0.02
_LONGEST = 120.0
# A job whose worker died runs in a child process of the worker that took it over.
_WORKER_PID = os.getppid() if sys.argv[0].endswith("child.py") else os.getpid()


class ToldToFail(Exception):
    """What a task raises that is told to fail."""


class OddError(Exception):
    """Cannot be pickled, has no text, and has far too much of everything else."""

    def __init__(self) -> None:
        super().__init__("x" * 10_000_000)
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise SystemExit("no text for you")


@app.handler(jobs.ordered)
@app.handler(jobs.effect)
def effect(task: Task, ctx: Context) -> None:
    with _noted(task, ctx):
        for pause in _pauses(task, ctx):
            time.sleep(pause)
        _fail_or_die(task, ctx)
        with ctx.transaction() as tx:
            tx.execute(
                f"insert into {_EFFECTS} (job_id, token, attempt, pid) values (%s, %s, %s, %s)",
                (ctx.job_id, ctx.fencing_token, ctx.attempt, _WORKER_PID),
            )
            _die_if(task.dies == "inside", ctx)
        _die_if(task.dies == "after", ctx)


@app.handler(jobs.plain)
def plain(task: Task, ctx: Context) -> None:
    with _noted(task, ctx):
        for pause in _pauses(task, ctx):
            time.sleep(pause)
        _fail_or_die(task, ctx)


@app.handler(jobs.asynchronous)
async def asynchronous(task: Task, ctx: Context) -> None:
    with _noted(task, ctx):
        for pause in _pauses(task, ctx):
            await asyncio.sleep(pause)
        _fail_or_die(task, ctx)


def _noted(task: Task, ctx: Context) -> AbstractContextManager[None]:
    return note_run(
        _EXECUTIONS,
        job_id=ctx.job_id,
        job_type=ctx.job.job_type,
        name=task.name,
        attempt=ctx.attempt,
        token=ctx.fencing_token,
        pid=_WORKER_PID,
    )


def _pauses(task: Task, ctx: Context) -> Iterator[float]:
    """How long to sleep, until the time is over and the gate is open."""
    if task.blocks and ctx.fencing_token == 1:
        ctypes.PyDLL(None).sleep(int(task.blocks))  # in C, with the interpreter held
    if task.seconds:
        yield task.seconds
    gates = [_FOLDER / task.gate, _FOLDER / f"{task.gate}-{ctx.fencing_token}"] if task.gate else []
    deadline = time.monotonic() + _LONGEST
    while gates and not any(gate.exists() for gate in gates) and time.monotonic() < deadline:
        yield _STEP


def _fail_or_die(task: Task, ctx: Context) -> None:
    spent = ctx.attempt > task.fails if task.fails >= 0 else (_FOLDER / "fixed").exists()
    if not spent:
        raise _error(task, ctx)
    if task.dies in _DEATHS:
        _DEATHS[task.dies]()
    _die_if(task.dies == "before", ctx)


def _error(task: Task, ctx: Context) -> Exception:
    if task.error == "odd":
        return OddError()
    if task.error == "huge":
        return ToldToFail("ä" * 10_000_000)
    return ToldToFail(f"{task.name} fails in attempt {ctx.attempt}")


def _eat() -> None:
    """Take memory until it is refused, or until somebody would have to be killed for it."""
    eaten = [b"x" * 4_000_000 for _ in range(100)]
    os.kill(os.getpid(), signal.SIGKILL)
    eaten.clear()


_DEATHS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(7),
    "crash": lambda: ctypes.string_at(0),
    "eat": _eat,
}


def _die_if(told: bool, ctx: Context) -> None:  # noqa: FBT001 - reads as a sentence where it is called
    if told and ctx.fencing_token == 1:
        os.kill(os.getpid(), signal.SIGKILL)
