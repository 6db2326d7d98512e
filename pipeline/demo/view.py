"""What the demo shows: a line of progress, and the table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from pipeline.core.state import JobState
from pipeline.demo.checks import Check

__all__ = ["progress", "verdict"]

_SHOWN = (JobState.COMPLETED, JobState.RUNNING, JobState.RETRYING, JobState.DEAD)
_WIDTH = 30


def progress(counts: Mapping[JobState, int], jobs: int, *, workers: int, lag: int) -> Text:
    """A bar, jobs by state, workers, and records that are not committed yet."""
    done = counts.get(JobState.COMPLETED, 0)
    filled = _WIDTH * done // max(1, jobs)
    states = "  ".join(f"{state.value} {counts.get(state, 0)}" for state in _SHOWN)
    return Text(f"   {'#' * filled}{'.' * (_WIDTH - filled)}  {states}  | workers {workers}  lag {lag}")


def verdict(checks: Sequence[Check]) -> Table:
    """A row a check."""
    table = Table("promise", "expected", "found", "")
    for check in checks:
        mark = Text("ok", "green") if check.holds else Text("OFF", "bold red")
        table.add_row(check.promise, check.expected, check.found, mark)
    return table
