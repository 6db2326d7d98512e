"""What every executor shares: its interface, its pace, and how a handler is called."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pydantic import BaseModel

from pipeline.core.outcome import Failed, Failure, Outcome, Succeeded, outcome_of
from pipeline.errors import ClaimLost
from pipeline.runtime.context import Context
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.handlers import Handler
from pipeline.runtime.judging import judged

__all__ = [
    "SUCCEEDED",
    "Executor",
    "OnRuns",
    "Pace",
    "outcome_after",
    "refuse_unstarted",
    "timed_out",
    "to_call",
]

AHEAD_SECONDS: Final = 0.05
OnRuns = Callable[[Sequence[Run]], None]
Contexts = Callable[[Delivery], Context]
SUCCEEDED: Final = Succeeded()

log = logging.getLogger("pipeline.executor")


class Executor(Protocol):
    def capacity(self) -> int:
        """How many more jobs it wants now."""
        ...

    def submit(self, deliveries: Sequence[Delivery]) -> None: ...

    def outstanding(self) -> int:
        """Jobs taken and not given back."""
        ...

    def start(self) -> None: ...

    def drop_unstarted(self) -> list[Delivery]:
        """Stop starting jobs; give those that have not started."""
        ...

    def check(self) -> None:
        """Look after time limits and idle slots; called several times a second."""
        ...

    def trouble(self) -> str:
        """Why this executor is of little use from here on, so that the worker should leave; empty while it is not so."""
        ...

    def abandon(self) -> int:
        """Cancel what still runs, as far as that can be done; give how many handlers may still be running."""
        ...


class Pace:
    """How long runs take, and so how many jobs may be outstanding: the slots, and what they finish in `AHEAD_SECONDS`.

    What is remembered of a kind of job leans to its shorter runs: a run that had to wait for the interpreter looks longer
    than its work is, and taking that for its length would wake more threads to wait for it.
    """

    def __init__(self, slots: int, *, most: int) -> None:
        self._slots = slots
        self._most = most
        self._seconds = 0.01  # over all kinds, a cautious guess at first
        self._by_kind: dict[str, float] = {}

    def of(self, kind: str) -> float:
        """About how many seconds a run of that kind of job takes."""
        return self._by_kind.get(kind, 0.01)

    def ran(self, kind: str, seconds: float) -> None:
        self._by_kind[kind] = _leaning(self._by_kind.get(kind, 0.01), seconds)
        self._seconds = _leaning(self._seconds, seconds)

    def room(self, outstanding: int, *, lost: int = 0) -> int:
        """How many more to take now: when a slot is free, or half of what was taken ahead has started.

        Taking each place as it comes free would make claims of one job; waiting for half makes them large. The other half
        keeps the slots at work until the next claim is answered.
        """
        slots = self._slots - lost
        if slots <= 0:
            return 0
        ahead = int(min(self._most, slots * AHEAD_SECONDS / max(self._seconds, 1e-6)))
        room = slots + ahead - outstanding
        return room if outstanding < slots or (room > 0 and room * 2 >= ahead) else 0


def _leaning(known: float, seen: float) -> float:
    return known + (seen - known) * (0.2 if seen < known else 0.02)


def refuse_unstarted(given: object) -> None:
    """Raise `TypeError` for what a plain handler gave when it has only been made, and not run: its work was never done.

    So it is with a wrapper that forgot to be a coroutine function itself, and with a function that yields.
    """
    if inspect.iscoroutine(given):
        given.close()  # nobody else will, and it would say so much later
    elif not (inspect.isawaitable(given) or inspect.isgenerator(given) or inspect.isasyncgen(given)):
        return
    raise TypeError(
        f"the handler gave a {type(given).__name__} that was never run; allowed: a function that does its work "
        "before it returns, or one defined with async def"
    )


def outcome_after(delivery: Delivery, error: BaseException) -> Outcome:
    """What a run gave whose handler raised. A job that its own transaction has completed stays completed."""
    handler, _ = to_call(delivery)
    if delivery.committed:
        log.warning(
            "handler raised after its transaction had completed the job",
            exc_info=error,
            extra={"action": "raised_after_commit", "job_id": delivery.job.job_id},
        )
        return SUCCEEDED
    if isinstance(error, ClaimLost):
        log.warning(
            "transaction refused: %s",
            error,
            extra={
                "action": "transaction_refused",
                "job_id": delivery.job.job_id,
                "job_type": delivery.job.job_type,
                "token": delivery.token,
            },
        )
    outcome = outcome_of(error, permanent=handler.job_type.permanent)
    return judged(outcome, error, handler.job_type, delivery.job)


def to_call(delivery: Delivery) -> tuple[Handler, BaseModel]:
    """The handler and the payload of a delivery that was made ready to run."""
    handler, payload = delivery.handler, delivery.payload
    assert handler is not None
    assert payload is not None
    return handler, payload


def timed_out(delivery: Delivery, seconds: float) -> Outcome:
    message = (
        f"the handler of {delivery.job.job_type} did not end within its time limit (ran {seconds:.1f} s)"
    )
    outcome = Failed(Failure("TimeoutError", message))
    if delivery.handler is None:
        return outcome
    return judged(outcome, TimeoutError(message), delivery.handler.job_type, delivery.job)
