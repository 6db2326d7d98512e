"""Builds what handlers are told of their jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from pipeline.core.claims import Settlement
from pipeline.core.clock import Clock
from pipeline.core.job import Job
from pipeline.core.ports import Effects
from pipeline.core.state import JobState
from pipeline.runtime.context import Context
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.transactions import Transaction

__all__ = ["Contexts"]


class Contexts:
    """`of` is called once for each run, just before the handler."""

    def __init__(self, *, worker_id: str, effects: Effects, alive: Callable[[], bool], clock: Clock) -> None:
        self._worker_id = worker_id
        self._effects = effects
        self._alive = alive
        self._clock = clock

    def of(self, delivery: Delivery) -> Context:
        # Taken now: a handler that overran its time limit must not complete a later run of its job by that one's token.
        job, token = delivery.job, delivery.token
        if not token:
            return Context(job, 0, None, self._alive)
        begin = partial(self._begin, delivery, job, token, self._clock.time())
        return Context(job, token, begin, self._alive)

    def _begin(self, delivery: Delivery, job: Job, token: int, started_at: float) -> Transaction:
        completion = partial(self._completion, job, token, started_at=started_at)
        return Transaction(
            partial(self._plain, delivery, completion), partial(self._awaited, delivery, completion)
        )

    # A handler may roll its transaction back and say nothing of it: then the block ends well here, and nothing is committed.

    @contextmanager
    def _plain(self, delivery: Delivery, completion: Callable[[], Settlement]) -> Iterator[Any]:
        kept = False
        with self._effects.transaction(self._worker_id, completion) as transaction:
            yield transaction
            kept = True
        delivery.committed = delivery.committed or kept

    @asynccontextmanager
    async def _awaited(self, delivery: Delivery, completion: Callable[[], Settlement]) -> AsyncIterator[Any]:
        kept = False
        async with self._effects.async_transaction(self._worker_id, completion) as transaction:
            yield transaction
            kept = True
        delivery.committed = delivery.committed or kept

    def _completion(self, job: Job, token: int, *, started_at: float) -> Settlement:
        return Settlement(
            job_id=job.job_id,
            token=token,
            state=JobState.COMPLETED,
            attempt=job.attempt,
            hop=job.hop,
            started_at=started_at,
            finished_at=self._clock.time(),
        )
