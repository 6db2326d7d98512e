"""Registering handlers: what can be one, where it runs, and what is refused at once rather than at each job."""

# ruff: noqa: ARG002, ARG005 - how its arguments are called is all that a handler is tested for here

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from pipeline.core.job_type import JobType
from pipeline.errors import ConfigError, UnknownJobType
from pipeline.runtime.context import Context
from pipeline.runtime.handlers import ASYNC, THREAD, Registry
from pipeline.runtime.transactions import Transaction
from tests.unit.runtime_parts import MAIL, Mail, new_job

CONTEXT = Context(new_job(), 7)


def registry_of(*job_types: JobType[Any]) -> Registry:
    registry = Registry()
    for job_type in job_types or (MAIL,):
        registry.declare(job_type)
    return registry


def called(function: Callable[..., Any]) -> Any:
    """What a handler gives that was registered."""
    registry = registry_of()
    registry.handle(MAIL, function)
    handler = registry.handler("email.send")
    assert handler is not None
    return handler.call(Mail(to="ann"), CONTEXT)


def lane_of(function: Callable[..., Any]) -> str:
    registry = registry_of()
    registry.handle(MAIL, function)
    (handler,) = registry.handlers()
    return handler.lane


class Plain:
    def __call__(self, mail: Mail) -> tuple[object, ...]:
        return (mail,)

    def method(self, mail: Mail, context: Context) -> tuple[object, ...]:
        return (mail, context)


class Async:
    async def __call__(self, mail: Mail, context: Context) -> None: ...

    async def method(self, mail: Mail) -> None: ...


async def coroutine(mail: Mail, context: Context) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        lambda mail: (mail,),
        lambda mail, *, retries=3: (mail,),
        lambda mail, **options: (mail,),
        Plain(),
        functools.partial(lambda extra, mail: (mail,), 1),
    ],
)
def test_a_function_of_the_payload_alone_is_called_with_it(function: Callable[..., Any]) -> None:
    assert called(function) == (Mail(to="ann"),)


@pytest.mark.parametrize(
    "function",
    [
        lambda mail, ctx: (mail, ctx),
        lambda mail, ctx=None: (mail, ctx),
        lambda *both: both,
        lambda mail, ctx, extra=1: (mail, ctx),
        Plain().method,
    ],
)
def test_a_function_of_payload_and_context_is_called_with_both(function: Callable[..., Any]) -> None:
    assert called(function) == (Mail(to="ann"), CONTEXT)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda a, b, c: None,
        lambda mail, *, ctx: None,
        lambda *, mail: None,
        lambda mail, ctx, /, extra: None,
        type,
    ],
)
def test_what_cannot_be_called_as_a_handler_is_refused_when_it_is_registered(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(
        ConfigError, match=r"handler of job type 'email.send' is .*; allowed: a function of \(payload\)"
    ):
        registry_of().handle(MAIL, function)


@pytest.mark.parametrize("function", [coroutine, Async(), Async().method, functools.partial(coroutine)])
def test_whatever_is_a_coroutine_function_runs_in_the_loop(function: Callable[..., Any]) -> None:
    """In a thread it would give a coroutine that nobody runs, and the job would count as done."""
    assert lane_of(function) == ASYNC


@pytest.mark.parametrize("function", [lambda mail: None, Plain(), Plain().method])
def test_a_plain_function_runs_in_a_thread(function: Callable[..., Any]) -> None:
    assert lane_of(function) == THREAD


def generator(mail: Mail) -> Iterator[None]:
    yield


async def async_generator(mail: Mail) -> AsyncIterator[None]:
    yield


class Yields:
    def __call__(self, mail: Mail) -> Iterator[None]:
        yield


@pytest.mark.parametrize("function", [generator, async_generator, Yields()])
def test_a_generator_is_refused_because_calling_it_does_nothing(function: Callable[..., Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"handler of job type 'email.send' is a generator: called, it does nothing"
    ):
        registry_of().handle(MAIL, function)


class TestRegistry:
    def test_a_name_is_declared_once(self) -> None:
        registry = registry_of()
        with pytest.raises(ConfigError, match=r"job type 'email.send' is declared twice, with"):
            registry.declare(JobType(name="email.send", model=Mail, timeout=3))

    def test_declaring_the_same_again_is_harmless(self) -> None:
        """A module may be imported under two names."""
        registry, again = registry_of(), JobType(name="email.send", model=Mail)
        registry.declare(again)
        assert registry.job_types() == [MAIL]
        registry.handle(MAIL, lambda mail: None)
        with pytest.raises(ConfigError, match=r"job type 'email.send' has a handler already"):
            registry.handle(again, lambda mail: None)

    def test_a_handler_needs_a_declared_type(self) -> None:
        other = JobType(name="report.build", model=Mail)
        with pytest.raises(
            UnknownJobType, match=r"'report.build' is not declared in this application; declared: email.send"
        ):
            registry_of().handle(other, lambda mail: None)
        with pytest.raises(UnknownJobType, match=r"'report.build' is not declared; declared: email.send"):
            registry_of().job_type("report.build")
        with pytest.raises(UnknownJobType, match="declared: none"):
            Registry().job_type("email.send")

    def test_a_refused_handler_leaves_the_type_free(self) -> None:
        registry = registry_of()
        with pytest.raises(ConfigError):
            registry.handle(MAIL, lambda: None)
        assert registry.handler("email.send") is None
        registry.handle(MAIL, lambda mail: None)
        assert registry.handler("email.send") is not None


class TestContext:
    def test_it_tells_of_the_job(self) -> None:
        job = new_job(attempt=3, tenant="globex")
        context = Context(job, 7)
        assert (context.job_id, context.tenant, context.attempt, context.fencing_token) == (
            job.job_id,
            "globex",
            3,
            7,
        )

    def test_it_tells_when_the_lease_is_lost(self) -> None:
        alive = [True]
        context = Context(new_job(), 7, None, lambda: alive[0])
        assert not context.lost
        alive.clear()
        alive.append(False)
        assert context.lost
        assert not CONTEXT.lost, "without a worker there is nothing to lose"

    def test_a_transaction_needs_a_store(self) -> None:
        with pytest.raises(
            ConfigError,
            match=r"ctx.transaction\(\) of job type 'email.send' needs a worker with a Postgres store",
        ):
            CONTEXT.transaction()
        begin = partial(Transaction, partial(nullcontext, "tx"), partial(nullcontext, "tx"))
        with Context(new_job(), 7, begin).transaction() as transaction:
            assert transaction == "tx"
