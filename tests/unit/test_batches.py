"""Handlers of batches, and job types that do not ask the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.core.clock import SystemClock
from pipeline.core.job_type import JobType
from pipeline.core.metrics import NoMetrics
from pipeline.core.outcome import Failed, Outcome, Reject, Rejected, Retry, Snooze, Snoozed, Succeeded
from pipeline.core.state import JobState, Trigger
from pipeline.errors import ConfigError
from pipeline.runtime.claimer import Claimer
from pipeline.runtime.context import Context
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.executors import ThreadExecutor
from pipeline.runtime.handlers import Registry
from tests.unit.runtime_parts import (
    NOW,
    JsonCodec,
    Mail,
    NoEvents,
    clock_at,
    delivery_of,
    eventually,
    new_buffer,
    new_job,
    record_of,
)

MAIL = JobType(name="email.send", model=Mail)
Handle = Callable[[Sequence[Mail], Sequence[Context]], Any]


def registry_of(function: Handle, *, size: int = 3) -> Registry:
    registry = Registry()
    registry.declare(MAIL)
    registry.handle_batches(MAIL, function, size=size)
    return registry


def outcomes_of(function: Handle, *, jobs: int, size: int = 3) -> list[Outcome]:
    """Run that many jobs, submitted at once, on one thread; the outcomes in the order of the jobs."""
    runs: list[Run] = []
    registry = registry_of(function, size=size)
    executor = ThreadExecutor(
        slots=1,
        most_ahead=100,
        clock=SystemClock(),
        contexts=lambda delivery: Context(delivery.job, 1),
        on_runs=runs.extend,
        on_room=lambda: None,
    )
    deliveries = [ready(number, registry) for number in range(jobs)]
    executor.start()
    executor.submit(deliveries)
    eventually(lambda: len(runs) == jobs)
    eventually(lambda: executor.outstanding() == 0)
    by_delivery = {run.delivery: run.outcome for run in runs}
    return [by_delivery[delivery] for delivery in deliveries]


def ready(number: int, registry: Registry) -> Delivery:
    delivery = delivery_of(record_of(new_job(), offset=number))
    delivery.handler = registry.handler("email.send")
    delivery.payload = Mail(to=f"ann-{number}")
    return delivery


def test_a_handler_gets_as_many_jobs_as_its_size_allows_each_once() -> None:
    batches: list[list[str]] = []

    def handle(mails: Sequence[Mail], contexts: Sequence[Context]) -> None:
        assert len(mails) == len(contexts)
        batches.append([mail.to for mail in mails])

    outcomes = outcomes_of(handle, jobs=7)
    assert outcomes == [Succeeded()] * 7
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [name for batch in batches for name in batch] == [f"ann-{number}" for number in range(7)]


def test_each_job_of_a_batch_has_an_outcome_of_its_own() -> None:
    def handle(mails: Sequence[Mail], _contexts: Sequence[Context]) -> list[BaseException | None]:
        return [None, ValueError("bad"), Reject("never"), Snooze(after=3), Retry(after=4)]

    ok, failed, rejected, snoozed, retried = outcomes_of(handle, jobs=5, size=5)
    assert ok == Succeeded()
    assert isinstance(failed, Failed)
    assert (failed.failure.error_class, failed.failure.message) == ("ValueError", "bad")
    assert isinstance(rejected, Rejected)
    assert snoozed == Snoozed(3.0, None)
    assert isinstance(retried, Failed)
    assert retried.retry_after == 4.0


def test_an_error_fails_every_job_of_the_batch() -> None:
    def handle(_mails: Sequence[Mail], _contexts: Sequence[Context]) -> None:
        raise ConnectionError("away")

    for outcome in outcomes_of(handle, jobs=3):
        assert isinstance(outcome, Failed)
        assert outcome.failure.error_class == "ConnectionError"


@pytest.mark.parametrize("given", [[None], [None] * 4, [None, "done", None], 3])
def test_what_is_no_outcome_for_each_job_fails_them_all(given: Any) -> None:
    for outcome in outcomes_of(lambda _mails, _contexts: given, jobs=3):
        assert isinstance(outcome, Failed)
        assert outcome.failure.error_class == "TypeError"


def test_a_batch_that_overruns_its_limit_is_settled_once_for_each_job() -> None:
    release, runs = threading.Event(), list[Run]()
    limited = JobType(name="email.send", model=Mail, timeout=5)
    registry = Registry()
    registry.declare(limited)
    registry.handle_batches(limited, lambda _mails, _contexts: release.wait(10) and None, size=4)
    clock = clock_at()
    executor = ThreadExecutor(
        slots=1,
        most_ahead=10,
        clock=clock,
        contexts=lambda delivery: Context(delivery.job, 1),
        on_runs=runs.extend,
        on_room=lambda: None,
    )
    executor.start()
    executor.submit([ready(number, registry) for number in range(3)])
    eventually(lambda: len(executor._slots[0].running) == 3)
    clock.advance(6)
    executor.check()
    assert [type(run.outcome) for run in runs] == [Failed] * 3
    assert executor.outstanding() == 0
    release.set()
    eventually(lambda: not executor.trouble())
    assert len(runs) == 3


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_a_size_that_makes_no_sense_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"is {size}; allowed: 1 to 10000"):
        registry_of(lambda _mails, _contexts: None, size=size)


def test_a_coroutine_cannot_take_batches() -> None:
    async def handle(_mails: Sequence[Mail], _contexts: Sequence[Context]) -> None:
        pass

    with pytest.raises(ConfigError, match="must be a plain function"):
        registry_of(handle)


def test_a_type_without_duplicate_suppression_never_asks_the_store() -> None:
    free = JobType(name="email.send", model=Mail, deduplicate=False)
    registry = Registry()
    registry.declare(free)
    registry.handle(free, lambda _mail: None)
    buffer, events = new_buffer(), NoEvents()
    store = MemoryJobStore(clock_at())
    store.close()  # every call would raise
    claimer = Claimer(
        worker_id="w1",
        buffer=buffer,
        store=store,
        codec=JsonCodec(),
        registry=registry,
        clock=clock_at(),
        metrics=NoMetrics(),
        events=events,
        held_recheck=1.0,
        on_runs=lambda _runs: None,
    )
    again = new_job(hop=1, attempt=2, not_before=NOW - 1)
    buffer.receive([delivery_of(record_of(job, offset=n)) for n, job in enumerate([new_job(), again])], NOW)
    granted = claimer.claim(buffer.take("thread", 10, NOW))
    assert [(delivery.token, delivery.payload) for delivery in granted] == [(0, Mail(to="ann"))] * 2
    firsts = [(move.previous, move.trigger) for move in events.moves if move.state is JobState.QUEUED]
    assert firsts == [(JobState.PENDING, Trigger.ENQUEUE), (JobState.RETRYING, Trigger.RETRY_READY)]


def test_order_by_key_needs_the_store() -> None:
    with pytest.raises(ConfigError, match=r"deduplicate of job type .email\.send. is False"):
        JobType(name="email.send", model=Mail, deduplicate=False, order="key")
