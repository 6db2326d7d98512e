"""What a handler run gave, and the typed signals that a handler raises to steer its job.

A signal is not an error: `Retry`, `Snooze`, `Reject` and `Cancel` say what shall happen, everything else that a
handler raises is a failure of the attempt.
"""

from __future__ import annotations

import traceback
from typing import NamedTuple

from pipeline.errors import ClaimLost, StoreUnavailable

__all__ = [
    "Cancel",
    "Cancelled",
    "Crashed",
    "Failed",
    "Failure",
    "Lost",
    "Outcome",
    "Reject",
    "Rejected",
    "Retry",
    "Signal",
    "Snooze",
    "Snoozed",
    "Succeeded",
    "describe_failure",
]

MAX_MESSAGE = 2_000
MAX_STACK = 8_000


class Signal(Exception):
    """The base of what a handler raises to steer its job."""


class Retry(Signal):
    """Fail this attempt and try again after `after` seconds, instead of the policy's delay."""

    def __init__(self, reason: str = "", *, after: float) -> None:
        super().__init__(reason or f"retry after {after:g} s")
        self.after = _seconds("after", after)


class Snooze(Signal):
    """Run the job again later without burning an attempt: `after` seconds from now, or at `until` (epoch seconds).

    A job that runs in order waits in its main topic, and is dead if that may delete its record before: reason `waits_too_long`.
    """

    def __init__(self, *, after: float | None = None, until: float | None = None) -> None:
        if (after is None) == (until is None):
            raise TypeError("Snooze takes either after= or until=")
        super().__init__(f"snooze after {after:g} s" if after is not None else f"snooze until {until}")
        self.after = None if after is None else _seconds("after", after)
        self.until = None if until is None else _seconds("until", until)


class Reject(Signal):
    """Send the job to the dead letters at once, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Signal):
    """End the job as cancelled: no retry, no dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} is {value}; allowed: seconds, 0 or more")
    return float(value)


class Failure(NamedTuple):
    """An error as text, bounded, safe to store: `error_class`, `message` and `stack`."""

    error_class: str
    message: str
    stack: str = ""


class Succeeded(NamedTuple):
    """The handler returned."""


class Failed(NamedTuple):
    """The attempt failed. `retry_after` overrides the policy's delay; `permanent` ends the job at once.

    `reason` names the dead letter when the attempts are spent. `counts` says whether the breaker of the job type minds.
    """

    failure: Failure
    retry_after: float | None = None
    permanent: bool = False
    reason: str = "max_attempts"
    counts: bool = True


class Crashed(NamedTuple):
    """The process died in which the job ran alone: the attempt failed, and the job is a danger to its worker.

    `crashes` counts the job's runs that ended so, this one included.
    """

    failure: Failure
    crashes: int


class Rejected(NamedTuple):
    """The handler refused the job, or it cannot be decoded: dead at once, for `reason`."""

    failure: Failure
    reason: str = "rejected"


class Snoozed(NamedTuple):
    """The job runs again later; no attempt is burnt. One of the two times is set; `reason` when it was not its handler's wish."""

    after: float | None
    until: float | None
    reason: str = ""


class Cancelled(NamedTuple):
    """The handler cancelled its job."""

    reason: str


class Lost(NamedTuple):
    """The claim passed to another worker while the handler ran: this run counts for nothing."""


Outcome = Succeeded | Failed | Crashed | Rejected | Snoozed | Cancelled | Lost

OUTAGE_SNOOZE = 5.0  # seconds until a job runs again whose handler met an outage of ours


def outcome_of(error: BaseException, *, permanent: tuple[type[BaseException], ...] = ()) -> Outcome:
    """Classify what a handler raised. An outage of our own store is not the job's fault: it costs no attempt."""
    try:
        return _classified(error, permanent)
    except Exception as broken:  # noqa: BLE001 - a signal of a user's own class may lack what ours have
        return Failed(describe_failure(broken))


def _classified(error: BaseException, permanent: tuple[type[BaseException], ...]) -> Outcome:
    if isinstance(error, Retry):
        return Failed(describe_failure(error), retry_after=_seconds("after", error.after))
    if isinstance(error, Snooze):
        return _snoozed(error)
    if isinstance(error, Reject):
        return Rejected(describe_failure(error))
    if isinstance(error, Cancel):
        return Cancelled(shorten(error.reason, MAX_MESSAGE))
    if isinstance(error, ClaimLost):
        return Lost()
    if isinstance(error, StoreUnavailable):
        return Snoozed(after=OUTAGE_SNOOZE, until=None)
    return Failed(describe_failure(error), permanent=isinstance(error, permanent))


def _snoozed(snooze: Snooze) -> Snoozed:
    if snooze.until is not None:
        return Snoozed(None, _seconds("until", snooze.until))
    return Snoozed(_seconds("after", snooze.after or 0.0), None)


def describe_failure(error: BaseException) -> Failure:
    """Turn any exception into bounded text, also one whose text cannot be had."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(shorten(name, 200), _message(error), _stack(error))


def _message(error: BaseException) -> str:
    try:
        return shorten(str(error), MAX_MESSAGE)
    except BaseException as broken:  # noqa: BLE001 - a user's __str__ may raise anything, SystemExit too
        return f"(no text: __str__ raised {type(broken).__name__})"


def _stack(error: BaseException) -> str:
    # Only frames: format_exception would call the error's own __str__ once more, unbounded.
    frames = traceback.extract_tb(error.__traceback__)
    return shorten("".join(traceback.StackSummary.from_list(frames[-30:]).format()), MAX_STACK)


def shorten(text: str, limit: int) -> str:
    """Cut `text` in the middle, saying how much; characters that neither Postgres nor Kafka takes are escaped."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... {len(text) - 2 * half} characters left out ... {text[-half:]}"
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
