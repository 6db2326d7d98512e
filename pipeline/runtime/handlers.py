"""Which function handles which job type."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, KeysView, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel

from pipeline.core.job_type import JobType
from pipeline.errors import ConfigError, UnknownJobType
from pipeline.runtime.context import Context

__all__ = ["ASYNC", "PROCESS", "SUSPECT", "THREAD", "Handler", "Registry"]

MOST_IN_BATCH = 10_000
THREAD = "thread"
ASYNC = "async"
PROCESS = "process"
SUSPECT = "suspect"  # no job type's own: for jobs that may kill the process they run in


CallBatch: TypeAlias = Callable[[Sequence[BaseModel], Sequence[Context]], Sequence[BaseException | None]]


@dataclass(frozen=True)
class Handler:
    """A handler as registered: `call` takes the payload and the context, whatever the function itself takes.

    One that takes batches has `call_batch` as well, for up to `batch_size` jobs: it gives an error or a signal for each
    job, None for those that succeeded.
    """

    job_type: JobType[Any]
    lane: str
    call: Callable[[BaseModel, Context], Any]
    call_batch: CallBatch | None = None
    batch_size: int = 1


class Registry:
    """Job types and their handlers. Filled when modules are imported, read by publishers and workers."""

    def __init__(self) -> None:
        self._types: dict[str, JobType[Any]] = {}
        self._handlers: dict[str, Handler] = {}

    def declare(self, job_type: JobType[Any]) -> None:
        """Raises `ConfigError` when another job type has the name."""
        known = self._types.get(job_type.name)
        if known is not None and known != job_type:
            raise ConfigError(
                f"job type {job_type.name!r} is declared twice, with {known.model} and {job_type.model}"
            )
        self._types.setdefault(job_type.name, job_type)

    def handle(self, job_type: JobType[Any], function: Callable[..., Any]) -> None:
        """Raises `ConfigError` when the type has a handler, or the function cannot be called as one."""
        self._check_free(job_type)
        name = job_type.name
        self._handlers[name] = Handler(job_type, _lane(job_type, function), _with_context(name, function))

    def handle_batches(self, job_type: JobType[Any], function: Callable[..., Any], *, size: int) -> None:
        """The same for a function that takes up to `size` jobs at a time, in a thread."""
        self._check_free(job_type)
        if not 1 <= size <= MOST_IN_BATCH:
            raise ConfigError(
                f"batch size of job type {job_type.name!r} is {size}; allowed: 1 to {MOST_IN_BATCH}"
            )
        if _lane(job_type, function) != THREAD:
            raise ConfigError(
                f"handler of batches of job type {job_type.name!r} must be a plain function that runs in a thread"
            )
        call_batch = batch_call(job_type.name, _with_context(job_type.name, function))
        self._handlers[job_type.name] = Handler(
            job_type, THREAD, single_call(call_batch), call_batch=call_batch, batch_size=size
        )

    def _check_free(self, job_type: JobType[Any]) -> None:
        name = job_type.name
        if self._types.get(name) != job_type:
            raise UnknownJobType(
                f"job type {name!r} is not declared in this application; declared: {self._names()}"
            )
        if name in self._handlers:
            raise ConfigError(f"job type {name!r} has a handler already")

    def job_type(self, name: str) -> JobType[Any]:
        """Raises `UnknownJobType`."""
        try:
            return self._types[name]
        except KeyError:
            raise UnknownJobType(f"job type {name!r} is not declared; declared: {self._names()}") from None

    def names(self) -> KeysView[str]:
        """The names of the declared job types, as they are at any time."""
        return self._types.keys()

    def job_types(self) -> list[JobType[Any]]:
        return list(self._types.values())

    def handler(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def handlers(self) -> Iterable[Handler]:
        return self._handlers.values()

    def _names(self) -> str:
        return ", ".join(sorted(self._types)) or "none"


def batch_call(name: str, function: Callable[..., Any]) -> CallBatch:
    """Call a handler of batches and check what it gives: nothing (all succeeded), or an outcome for each job."""

    def call(payloads: Sequence[BaseModel], contexts: Sequence[Context]) -> Sequence[BaseException | None]:
        given = function(payloads, contexts)
        if given is None:
            return [None] * len(payloads)
        outcomes = list(given)
        if len(outcomes) != len(payloads) or not all(
            outcome is None or isinstance(outcome, BaseException) for outcome in outcomes
        ):
            raise TypeError(
                f"handler of batches of job type {name!r} was given {len(payloads)} jobs; allowed to return: None, or for "
                "each of them None, an exception or a signal"
            )
        return outcomes

    return call


def single_call(call_batch: CallBatch) -> Callable[[BaseModel, Context], None]:
    """A batch of one: for a job that is run alone."""

    def call(payload: BaseModel, context: Context) -> None:
        outcome = call_batch([payload], [context])[0]
        if outcome is not None:
            raise outcome

    return call


def _lane(job_type: JobType[Any], function: Callable[..., Any]) -> str:
    """Where the function runs; raises `ConfigError` when it cannot run where its job type wants it."""
    if any(map(_yields, _faces(function))):
        raise ConfigError(
            f"handler of job type {job_type.name!r} is a generator: called, it does nothing; allowed: a function that does "
            "its work before it returns, or one defined with async def"
        )
    natural = ASYNC if any(map(inspect.iscoroutinefunction, _faces(function))) else THREAD
    lane = job_type.executor or natural
    if (lane == ASYNC) != (natural == ASYNC):
        raise ConfigError(
            f"executor of job type {job_type.name!r} is {lane!r}, its handler is "
            f"{'a coroutine' if natural == ASYNC else 'a plain'} function; allowed: "
            f"{'async' if natural == ASYNC else 'thread, process'}"
        )
    if lane == PROCESS and "<locals>" in getattr(function, "__qualname__", ""):
        raise ConfigError(
            f"executor of job type {job_type.name!r} is 'process', its handler {function.__qualname__} is made inside of a "
            "function; allowed: functions of a module, which a child process finds by importing it"
        )
    return lane


def _faces(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """What may say how a callable runs: itself, or its `__call__` when it is an object of a class."""
    return (function, type(function).__call__)


def _yields(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _with_context(
    name: str, function: Callable[..., Any]
) -> Callable[[BaseModel, Context], Any | Awaitable[Any]]:
    if _takes(function, 2):
        return function
    if _takes(function, 1):
        return lambda payload, _context: function(payload)
    raise ConfigError(
        f"handler of job type {name!r} is {function!r}; allowed: a function of (payload) or (payload, context)"
    )


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many arguments, and no others."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):  # ValueError: some functions written in C tell nothing
        return False
    return True
