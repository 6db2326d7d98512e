"""Time, passed in. All times in this package are seconds: `time()` since the Unix epoch, `monotonic()` since anywhere."""

from __future__ import annotations

import time as machine
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Where the present comes from."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    # Asked several times for every job: not through functions of our own.
    time = staticmethod(machine.time)
    monotonic = staticmethod(machine.monotonic)


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
