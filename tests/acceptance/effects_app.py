"""Effects once, in every lane, stopped at every step: `pipeline worker tests.acceptance.effects_app:app`.

The first run of a job stops at the step that its payload names, until the file `go` exists; a later run goes through. What
stops at `commit` and `cut` is held by the server: a trigger on the table of effects makes their COMMIT wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import BaseModel

from pipeline import Backoff, Context, Pipeline
from tests.harness.ledger import Ledger, note_run

__all__ = ["AT_COMMIT", "LANES", "STEPS", "TARGET", "Work", "app", "write_work_schemas"]

TARGET = "tests.acceptance.effects_app:app"
STEPS = ("claimed", "begun", "written", "after", "settled")
AT_COMMIT = ("commit", "cut")  # one that the server commits in the end, one that it does not
_PAUSE = 0.02


class Work(BaseModel):
    name: str
    step: str


app = Pipeline()
_RETRY = Backoff(max_attempts=4, base=1, multiplier=1, jitter=0.0)
LANES = {
    "thread": app.job_type("step.thread", Work, retry=_RETRY, breaker=None),
    "async": app.job_type("step.async", Work, retry=_RETRY, breaker=None),
    "process": app.job_type("step.process", Work, retry=_RETRY, breaker=None, executor="process"),
}


def write_work_schemas(folder: Path) -> None:
    fields = [{"name": name, "type": "string"} for name in ("name", "step")]
    for job_type in LANES.values():
        (folder / job_type.name).mkdir(parents=True)
        schema = {"type": "record", "name": "Work", "namespace": "tests.acceptance", "fields": fields}
        (folder / job_type.name / "v1.avsc").write_text(json.dumps(schema))


def _folder() -> Path:
    return Path(os.environ["HARNESS_FOLDER"])


def _noted(work: Work, ctx: Context) -> AbstractContextManager[None]:
    return note_run(
        Ledger(_folder() / "executions"),
        job_id=ctx.job_id,
        job_type=ctx.job.job_type,
        name=work.name,
        attempt=ctx.attempt,
        token=ctx.fencing_token,
        pid=os.getpid(),
    )


def _stop_at(step: str, work: Work, ctx: Context) -> Iterator[float]:
    """How long to sleep, until the run may go on."""
    if work.step != step or ctx.fencing_token > 1:
        return
    Ledger(_folder() / "stopped").append({"job_id": ctx.job_id})
    while not (_folder() / "go").exists():
        yield _PAUSE


def _insert(work: Work, ctx: Context) -> tuple[str, tuple[object, ...]]:
    held = AT_COMMIT.index(work.step) if work.step in AT_COMMIT and ctx.fencing_token == 1 else None
    return (
        f"insert into {os.environ['HARNESS_EFFECTS']} (job_id, token, attempt, pid, held) values (%s, %s, %s, %s, %s)",
        (ctx.job_id, ctx.fencing_token, ctx.attempt, os.getpid(), held),
    )


@app.handler(LANES["thread"])
def in_thread(work: Work, ctx: Context) -> None:
    def stop_at(step: str) -> None:
        for pause in _stop_at(step, work, ctx):
            time.sleep(pause)

    with _noted(work, ctx):
        stop_at("claimed")
        with ctx.transaction() as tx:
            stop_at("begun")
            tx.execute(*_insert(work, ctx))
            stop_at("written")
        stop_at("after")


@app.handler(LANES["process"])
def in_process(work: Work, ctx: Context) -> None:
    in_thread(work, ctx)


@app.handler(LANES["async"])
async def in_loop(work: Work, ctx: Context) -> None:
    async def stop_at(step: str) -> None:
        for pause in _stop_at(step, work, ctx):
            await asyncio.sleep(pause)

    with _noted(work, ctx):
        await stop_at("claimed")
        async with ctx.transaction() as tx:
            await stop_at("begun")
            await tx.execute(*_insert(work, ctx))
            await stop_at("written")
        await stop_at("after")
