"""Builds what handlers are told of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pipeline.core.claims import Settlement
from pipeline.core.clock import Clock
from pipeline.core.job import Job
from pipeline.core.ports import Effects
from pipeline.core.state import JobState
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.handlers import Context

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

    @contextmanager
    def _begin(self, delivery: Delivery, job: Job, token: int, started_at: float) -> Iterator[Any]:
        completion = partial(self._completion, job, token, started_at=started_at)
        with self._effects.transaction(self._worker_id, completion) as transaction:
            yield transaction
        delivery.committed = True

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
