"""What a `wait_*` object of tenacity is called with, without tenacity: the wait objects are the user's, the loop is ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["RetryState"]


class _Ended:
    """The failed attempt, with the methods of a finished future."""

    failed = True

    def __init__(self, error: BaseException, attempt_number: int) -> None:
        self._error = error
        self.attempt_number = attempt_number

    def exception(self, timeout: float | None = None) -> BaseException:
        del timeout
        return self._error

    def result(self, timeout: float | None = None) -> NoReturn:
        del timeout
        raise self._error


class RetryState:
    """The part of `tenacity.RetryCallState` that can be told of a job.

    `attempt_number` is the attempt that failed (the first is 1), `outcome.exception()` what it raised: the error itself
    where the handler ran here or in a child, else a stand-in. Attempts lie in several processes, so there is no function
    called, and no time it has taken: those are empty, or None.
    """

    retry_object: Any = None
    fn: Any = None
    args: tuple[Any, ...] = ()
    next_action: Any = None
    outcome_timestamp: float | None = None
    seconds_since_start: float | None = None
    idle_for: float = 0.0
    upcoming_sleep: float = 0.0

    def __init__(self, attempt_number: int, error: BaseException) -> None:
        self.attempt_number = attempt_number
        self.outcome = _Ended(error, attempt_number)
        self.kwargs: Mapping[str, Any] = {}
