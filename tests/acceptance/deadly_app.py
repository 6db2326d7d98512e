"""Jobs that kill the process they run in, in every lane: `pipeline worker tests.acceptance.deadly_app:app`.

Runs are noted with the process that they really run in, be it the worker or a child of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import BaseModel

from pipeline import Backoff, Context, Pipeline
from tests.harness.ledger import Ledger, note_run

__all__ = ["LANES", "PAIRS", "TARGET", "Deed", "app", "write_deed_schemas"]

TARGET = "tests.acceptance.deadly_app:app"


class Deed(BaseModel):
    """`do` is what the handler does once the file named `gate` exists, if that is given."""

    name: str
    do: str = ""
    gate: str = ""


app = Pipeline()
_RETRY = Backoff(max_attempts=4, base=1, multiplier=1, jitter=0.0)
LANES = {
    "thread": app.job_type("deed.thread", Deed, retry=_RETRY, breaker=None),
    "async": app.job_type("deed.async", Deed, retry=_RETRY, breaker=None),
    "process": app.job_type("deed.process", Deed, retry=_RETRY, breaker=None, executor="process"),
    "limited": app.job_type("deed.limited", Deed, retry=_RETRY, breaker=None, executor="process", timeout=5),
}

PAIRS = app.job_type("deed.pairs", Deed, retry=_RETRY, breaker=None, concurrency=2)


def write_deed_schemas(folder: Path) -> None:
    fields = [{"name": name, "type": "string", "default": ""} for name in ("name", "do", "gate")]
    for job_type in (*LANES.values(), PAIRS):
        (folder / job_type.name).mkdir(parents=True)
        schema = {"type": "record", "name": "Deed", "namespace": "tests.acceptance", "fields": fields}
        (folder / job_type.name / "v1.avsc").write_text(json.dumps(schema))


def _eat() -> None:
    """Touch ever more memory, slowly enough for somebody to see it coming."""
    eaten = []
    while True:
        eaten.append(b"x" * 4_000_000)
        time.sleep(0.001)


def _spin() -> None:
    """Hold the interpreter in C: no signal handler and no other thread of Python has a say."""
    ctypes.PyDLL(None).sleep(60)


_DEEDS: dict[str, Callable[[], object]] = {
    "": lambda: None,
    "exit": lambda: os._exit(7),
    "crash": lambda: ctypes.string_at(0),
    "eat": _eat,
}


def _do(deed: Deed, ctx: Context) -> None:
    first = ctx.fencing_token == 1
    if deed.do == "spin once":
        if first:
            _spin()
    elif deed.do.startswith("effect"):
        with ctx.transaction() as tx:
            tx.execute(
                f"insert into {os.environ['HARNESS_EFFECTS']} values (%s, %s, %s, %s)",
                (ctx.job_id, ctx.fencing_token, ctx.attempt, os.getpid()),
            )
            if deed.do == "effect, killed inside" and first:
                os.kill(os.getpid(), signal.SIGKILL)
        if deed.do == "effect, killed after":
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        _DEEDS[deed.do]()


def _noted(deed: Deed, ctx: Context) -> AbstractContextManager[None]:
    return note_run(
        Ledger(Path(os.environ["HARNESS_FOLDER"]) / "executions"),
        job_id=ctx.job_id,
        job_type=ctx.job.job_type,
        name=deed.name,
        attempt=ctx.attempt,
        token=ctx.fencing_token,
        pid=os.getpid(),
    )


def _is_closed(deed: Deed) -> bool:
    return bool(deed.gate) and not (Path(os.environ["HARNESS_FOLDER"]) / deed.gate).exists()


@app.handler(LANES["thread"])
def in_thread(deed: Deed, ctx: Context) -> None:
    with _noted(deed, ctx):
        while _is_closed(deed):
            time.sleep(0.02)
        _do(deed, ctx)


@app.handler(PAIRS)
@app.handler(LANES["async"])
async def in_loop(deed: Deed, ctx: Context) -> None:
    with _noted(deed, ctx):
        while _is_closed(deed):  # noqa: ASYNC110 - the test that opens the gate is another process
            await asyncio.sleep(0.02)
        if deed.do == "take a moment":
            await asyncio.sleep(0.1)
            return
        _do(deed, ctx)


@app.handler(LANES["limited"])
@app.handler(LANES["process"])
def in_process(deed: Deed, ctx: Context) -> None:
    in_thread(deed, ctx)
