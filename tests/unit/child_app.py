"""An application for tests of child processes: a payload says what its handler does."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from pipeline import Cancel, Context, Pipeline, Reject, Retry, Snooze

TARGET = "tests.unit.child_app:app"


class Deed(BaseModel):
    do: str
    about: str = ""


app = Pipeline()
deed = app.job_type("unit.deed", Deed, executor="process", permanent=(LookupError,))
short = app.job_type("unit.short", Deed, executor="process", timeout=2.0)
coroutine = app.job_type("unit.coroutine", Deed, timeout=0.5)


def write_schemas(folder: Path) -> None:
    fields = [{"name": name, "type": "string"} for name in ("do", "about")]
    for job_type in (deed, short, coroutine):
        (folder / job_type.name).mkdir(parents=True)
        schema = {"type": "record", "name": "Deed", "namespace": "tests.unit", "fields": fields}
        (folder / job_type.name / "v1.avsc").write_text(json.dumps(schema))


def _raise(error: BaseException) -> None:
    raise error


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(8_000_000))


def _eat_and_stumble() -> None:
    try:
        _eat()
    finally:
        raise RuntimeError("cannot clean up")


def _sleep(about: str) -> None:
    Path(about).write_text(str(os.getpid()))
    time.sleep(60)


def _sleep_beside(about: str) -> None:
    """Start a program, note its process, and wait for it."""
    program = subprocess.Popen(["sleep", "60"])
    Path(about).write_text(str(program.pid))
    program.wait()


def _wait_until_lost(ctx: Context) -> None:
    while not ctx.lost:
        time.sleep(0.01)
    raise Reject("lost")


_DEEDS: dict[str, Callable[[Deed, Context], object]] = {
    "nothing": lambda _deed, _ctx: None,
    "fail": lambda _deed, _ctx: _raise(ValueError("no such address")),
    "fail for good": lambda _deed, _ctx: _raise(KeyError("gone")),
    "retry": lambda _deed, _ctx: _raise(Retry("busy", after=7)),
    "snooze": lambda _deed, _ctx: _raise(Snooze(until=2e9)),
    "reject": lambda _deed, _ctx: _raise(Reject("no")),
    "cancel": lambda _deed, _ctx: _raise(Cancel("enough")),
    "exit": lambda _deed, _ctx: _raise(SystemExit(4)),
    "tell process": lambda _deed, _ctx: _raise(Reject(str(os.getpid()))),
    "tell context": lambda _deed, ctx: _raise(
        Reject(f"{ctx.job_id} {ctx.attempt} {ctx.tenant} {ctx.fencing_token} {ctx.lost}")
    ),
    "tell signals": lambda _deed, _ctx: _raise(
        Reject(
            subprocess.run(
                ["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True
            ).stdout
        )
    ),
    "wait until lost": lambda _deed, ctx: _wait_until_lost(ctx),
    "die": lambda _deed, _ctx: os._exit(3),
    "crash": lambda _deed, _ctx: ctypes.string_at(0),
    "eat": lambda _deed, _ctx: _eat(),
    "eat and stumble": lambda _deed, _ctx: _eat_and_stumble(),
    "sleep": lambda deed, _ctx: _sleep(deed.about),
    "sleep beside": lambda deed, _ctx: _sleep_beside(deed.about),
}


def _do(deed: Deed, ctx: Context) -> None:
    _DEEDS[deed.do](deed, ctx)


app.handler(deed)(_do)
app.handler(short)(_do)


@app.handler(coroutine)
async def do_later(deed: Deed, ctx: Context) -> None:
    if deed.do == "tell loop":
        raise Reject(str(id(asyncio.get_running_loop())))
    if deed.do == "sleep":
        await asyncio.sleep(60)
    if deed.do == "never mind":
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
    _do(deed, ctx)
