"""How far something long is: a bar on a terminal, elsewhere a JSON line every 5 seconds. On standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pipeline.cli.text import one_line

__all__ = ["EVERY_SECONDS", "Meter", "meter"]

EVERY_SECONDS = 5.0


class Meter(Protocol):
    """Is told how far it is. `facts` are told to machines, `note` to people."""

    def tell(self, done: int, total: int, *, note: str = "", **facts: object) -> None: ...


@contextmanager
def meter(action: str) -> Iterator[Meter]:
    """`action` names what is measured, such as `replay`."""
    if sys.stderr.isatty():
        with _bar(action) as progress:
            yield _Bar(progress, progress.add_task(action, total=None, note="", rate=""))
    else:
        yield _Lines(action)


def _bar(action: str) -> Progress:
    return Progress(
        TextColumn(action),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._started = time.monotonic()

    def tell(self, done: int, total: int, *, note: str = "", **facts: object) -> None:
        del facts
        rate = done / max(time.monotonic() - self._started, 0.001)
        self._progress.update(
            self._task, completed=done, total=total, note=one_line(note), rate=f"{rate:,.0f}/s"
        )


class _Lines:
    def __init__(self, action: str) -> None:
        self._action = action
        self._started = self._told = time.monotonic()

    def tell(self, done: int, total: int, *, note: str = "", **facts: object) -> None:
        now = time.monotonic()
        if now < self._told + EVERY_SECONDS:
            return
        self._told = now
        rate = round(done / (now - self._started), 1)
        told = {
            "action": f"{self._action}_progress",
            **facts,
            "done": done,
            "total": total,
            "per_second": rate,
        }
        if note:
            told["holding"] = note
        click.echo(json.dumps(told), err=True)
