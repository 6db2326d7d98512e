"""Wiring of what keeps jobs back: breakers, and long waits. Beside `app`, which hands it the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypedDict

from pipeline.config import Settings
from pipeline.config.worker_section import WorkerSettings
from pipeline.core.breaker import Breaker
from pipeline.core.clock import Clock
from pipeline.core.events import BreakerChange
from pipeline.core.metrics import Metrics
from pipeline.core.ports import BreakerStore
from pipeline.runtime.breaker_news import BreakerNews
from pipeline.runtime.breakers import Breakers, BreakerSettings
from pipeline.runtime.delivery import Run
from pipeline.runtime.handlers import Registry
from pipeline.runtime.shelf import ShelvingBuffer

__all__ = ["DEFAULT_BREAKER", "build_breakers", "kept_in_place", "longest_wait", "shelf_limits"]

DEFAULT_BREAKER = Breaker()


class ShelfLimits(TypedDict):
    """Those of `BreakerSettings`."""

    shelf: int
    shelf_bytes: int
    ahead: int


def shelf_limits(worker: WorkerSettings) -> ShelfLimits:
    """Half of the room that jobs have which wait aside: the other half is for those that wait for their key or a place."""
    return ShelfLimits(
        shelf=max(1, worker.delay_buffer_jobs // 2),
        shelf_bytes=int(worker.buffer_mb * 1e6 / 2),
        ahead=max(1, worker.ahead_max // 2),
    )


def longest_wait(settings: Settings) -> float:
    """How long a record may wait in a retry topic without being deleted there, should all workers be away meanwhile."""
    kept = settings.topics.retry_retention
    return inf if kept == -1 else max(kept - settings.retry.outage_allowance, *settings.retry.tiers)


def kept_in_place(settings: Settings) -> float:
    """How long a record of a main topic is safe from being deleted there, should all workers be away at the end of it."""
    kept = settings.topics.main_retention
    return inf if kept == -1 else max(kept - settings.retry.outage_allowance, kept / 2)


def build_breakers(
    registry: Registry,
    store: BreakerStore,
    settings: BreakerSettings,
    *,
    buffer: ShelvingBuffer,
    is_retry: Callable[[str], bool],
    clock: Clock,
    metrics: Metrics,
    on_change: Callable[[BreakerChange], None],
    on_runs: Callable[[Sequence[Run]], None],
    stuck: Callable[[], Mapping[str, int]],
) -> Breakers:
    """For the job types that are declared."""
    declared = registry.job_types()
    return Breakers(
        settings=settings,
        breakers={job_type.name: job_type.breaker for job_type in declared if job_type.breaker is not None},
        store=store,
        buffer=buffer,
        is_retry=is_retry,
        in_order=[job_type.name for job_type in declared if job_type.order == "key"],
        clock=clock,
        rng=random.SystemRandom(),
        news=BreakerNews(
            worker_id=settings.worker_id, queue=settings.queue, metrics=metrics, on_change=on_change
        ),
        on_runs=on_runs,
        stuck=stuck,
    )
