"""Time limits of many runs on one event loop, with one timer for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Deadlines", "Timer", "Timers"]

Run = TypeVar("Run")


class Timer(Protocol):
    def when(self) -> float: ...

    def cancel(self) -> None: ...


class Timers(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Deadlines(Generic[Run]):
    """`on_late` is told, by the loop, of each run that was not taken out within its limit.

    Runs with the same limit fall due in the order in which they began: a line for each limit, of which only the head is
    looked at, takes the place of a timer for each run. Only for the loop's thread.
    """

    def __init__(self, loop: Timers, on_late: Callable[[Run], None]) -> None:
        self._loop = loop
        self._on_late = on_late
        self._lines: dict[float, dict[Run, float]] = {}  # by limit: runs and when they fall due
        self._timer: Timer | None = None

    def add(self, run: Run, limit: float) -> None:
        """`limit` in seconds from now on."""
        due = self._loop.time() + limit
        self._lines.setdefault(limit, {})[run] = due
        if self._timer is None or due < self._timer.when():
            self._wake_at(due)

    def remove(self, run: Run, limit: float) -> None:
        """Harmless for one that was late."""
        self._lines[limit].pop(run, None)

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for line in self._lines.values():
            for run in _due(line, now):
                del line[run]
                self._on_late(run)
        heads = [next(iter(line.values())) for line in self._lines.values() if line]
        if heads:
            self._wake_at(min(heads))


def _due(line: dict[Run, float], now: float) -> list[Run]:
    late: list[Run] = []
    for run, due in line.items():
        if due > now:
            break
        late.append(run)
    return late
