"""Workers whose jobs need something that breaks: `pipeline worker tests.acceptance.dependency_app:app`.

The job type `work.effect` needs it, with a breaker; `work.plain` does not. A file named `mode` says what it does: absent, it works;
else its text names how a run ends.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from pipeline import Backoff, Breaker, Cancel, Context, Pipeline, Reject, Snooze
from tests.harness.jobs import EFFECT, PLAIN, Task
from tests.harness.ledger import Ledger, note_run

__all__ = ["app"]

FOLDER = Path(os.environ["HARNESS_FOLDER"])
EXECUTIONS = Ledger(FOLDER / "executions")
OPTIONS = json.loads(os.environ.get("DEPENDENCY_OPTIONS", "{}"))
LONGEST = 60.0

app = Pipeline()


class Broken(Exception):
    """What its job needs is broken."""


class Unwanted(Exception):
    """Its job is wrong, for good."""


dependent = app.job_type(
    EFFECT,
    Task,
    retry=Backoff(
        **{"max_attempts": 50, "base": 1.0, "multiplier": 1.0, "jitter": 0.0, **OPTIONS.get("retry", {})}
    ),
    timeout=OPTIONS.get("timeout"),
    permanent=(Unwanted,),
    breaker=Breaker(**{"reset_after": 2.0, **OPTIONS.get("breaker", {})}),
)
light = app.job_type(PLAIN, Task)


@app.handler(dependent)
def needs_it(task: Task, ctx: Context) -> None:
    with _noted(task, ctx):
        time.sleep(task.seconds)
        mode = _mode()
        if mode == "hang":
            Ledger(FOLDER / "hanging").append({"job_id": ctx.job_id, "token": ctx.fencing_token})
            _wait_while("hang")
            mode = _mode()
        _end_as_told(mode)
        with ctx.transaction() as tx:
            tx.execute(
                f"insert into {os.environ['HARNESS_EFFECTS']} (job_id, token, attempt, pid) values (%s, %s, %s, %s)",
                (ctx.job_id, ctx.fencing_token, ctx.attempt, os.getpid()),
            )


@app.handler(light)
def needs_nothing(task: Task, ctx: Context) -> None:
    with _noted(task, ctx):
        time.sleep(task.seconds)


def _noted(task: Task, ctx: Context) -> AbstractContextManager[None]:
    return note_run(
        EXECUTIONS,
        job_id=ctx.job_id,
        job_type=ctx.job.job_type,
        name=task.name,
        attempt=ctx.attempt,
        token=ctx.fencing_token,
        pid=os.getpid(),
    )


def _mode() -> str:
    try:
        return (FOLDER / "mode").read_text()
    except FileNotFoundError:
        return ""


def _wait_while(mode: str) -> None:
    deadline = time.monotonic() + LONGEST
    while _mode() == mode and time.monotonic() < deadline:
        time.sleep(0.02)


def _end_as_told(mode: str) -> None:
    if mode == "broken":
        raise Broken("no route to it")
    if mode == "permanent":
        raise Unwanted("such a job is never done")
    if mode == "reject":
        raise Reject("not wanted")
    if mode == "cancel":
        raise Cancel("not needed")
    if mode == "snooze":
        raise Snooze(after=1)
    if mode:
        raise AssertionError(f"no such mode: {mode}")
