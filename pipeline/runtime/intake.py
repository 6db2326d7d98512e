"""The consumer's side of a worker: fetch, back-pressure, commits, rebalances. All on the thread that owns the consumer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from pipeline.core.clock import Clock
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import JobConsumer
from pipeline.core.stuck import Progress
from pipeline.runtime.buffer import Buffer
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.events import EventSink
from pipeline.runtime.held import Limits

__all__ = ["Intake", "IntakeSettings"]

log = logging.getLogger("pipeline.intake")

POLL_SECONDS = 0.05
LOOK_AHEAD_SECONDS = 0.5
EVENT_PATIENCE = 2.0  # seconds that a last commit waits for events


class IntakeSettings(NamedTuple):
    """Batch size of a poll, seconds between commits, seconds that a revoked partition's running jobs get, limits."""

    poll_batch: int
    commit_interval: float
    revoke_timeout: float
    limits: Limits


@mypyc_attr(allow_interpreted_subclasses=True)
class Intake:
    """A `RebalanceListener`. `step` is called in a loop, by one thread, until the worker has drained."""

    def __init__(
        self,
        *,
        consumer: JobConsumer,
        buffer: Buffer,
        settings: IntakeSettings,
        queue_of: Callable[[str], str],
        is_retry: Callable[[str], bool],
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._consumer = consumer
        self._buffer = buffer
        self._settings = settings
        # A name and a partition for each record would be most of the work of taking it in.
        self._queue = lru_cache(maxsize=1024)(queue_of)
        self._partition = lru_cache(maxsize=100_000)(Partition)
        self.is_retry = is_retry
        self._clock = clock
        self._events = events
        self._commit_due = 0.0
        self._sealed: deque[tuple[int, dict[Partition, int]]] = deque()  # done, their events on the way
        self._paused: set[Partition] = set()
        self._ahead: set[Partition] = set()
        self._look_ahead_at = 0.0
        self._main_full = self._waiting_full = self._aside_full = self._draining = False

    # --- the loop's body

    def step(self) -> int:
        """Fetch once, then commit if it is time; give how many records came."""
        records = self._consumer.poll(self._settings.poll_batch, POLL_SECONDS)
        if records:
            self._buffer.receive([self._delivery(record) for record in records], self._clock.time())
        self._press_back()
        if self._clock.monotonic() >= self._commit_due:
            self._seal()
        if self._sealed:
            self._commit_sealed(wait=False, patience=0.0)
        return len(records)

    def _delivery(self, record: Record) -> Delivery:
        job, problem = parse_job(record, queue=self._queue(record.topic))
        return Delivery(record, self._partition(record.topic, record.partition), job, problem)

    def commit(self) -> None:
        """Commit what is done, and wait for it; what has no acknowledged events within a bound is left to be redelivered."""
        self._seal()
        self._commit_sealed(wait=True, patience=EVENT_PATIENCE)

    def _seal(self) -> None:
        """Take what is done since the last time, and have the events of those jobs sent."""
        self._commit_due = self._clock.monotonic() + self._settings.commit_interval
        self._buffer.commit_failed(self._consumer.failed_commits())
        done = self._buffer.take_commits()
        period = self._events.seal()
        if done:
            self._sealed.append((period, done))

    def _commit_sealed(self, *, wait: bool, patience: float) -> None:
        """Commit what was sealed and has its events in Kafka. Offsets that are refused are computed anew next time."""
        offsets: dict[Partition, int] = {}
        while self._sealed and self._events.acknowledged(self._sealed[0][0], timeout=patience):
            offsets |= self._sealed.popleft()[1]
        if (offsets or wait) and not self._consumer.commit(offsets, wait=wait):
            self._buffer.commit_failed(offsets)

    def drain(self) -> None:
        """Fetch nothing more; polling goes on, to stay in the group and to commit."""
        self._draining = True

    # --- back-pressure

    def _press_back(self) -> None:
        """Pause what is full until there is room again. Retries that wait must not stop main topics, nor the other way.

        When too much waits for its key, only the partitions stop that it lies in. When too many retries wait, only the
        partitions stop that hold more than their share: those of the other tiers, and tenants, may be due long before.
        """
        load, aside, limits = self._buffer.load(), self._buffer.aside(), self._settings.limits
        self._main_full = _full(self._main_full, 0.5, load.jobs / limits.jobs, load.bytes / limits.bytes)
        waiting_fills = (load.waiting / limits.waiting, load.waiting_bytes / limits.bytes)
        self._waiting_full = _full(self._waiting_full, 0.9, *waiting_fills)
        aside_fills = (aside.jobs / limits.waiting, aside.bytes / limits.bytes)
        self._aside_full = _full(self._aside_full, 0.9, *aside_fills)
        wanted = {p for p in self._buffer.assigned() if self._must_pause(p)}
        if self._aside_full:
            wanted |= aside.partitions.intersection(self._buffer.assigned())
        if self._waiting_full:
            wanted |= self._over_their_share()
        wanted |= self._far_ahead()
        if pause := wanted - self._paused:
            self._consumer.pause(sorted(pause))
        if resume := self._paused - wanted:
            self._consumer.resume(sorted(resume))
        self._paused = wanted

    def _far_ahead(self) -> set[Partition]:
        """Partitions that wait for their first unfinished job: what is done beyond it is remembered one by one."""
        now, limit = self._clock.monotonic(), self._settings.limits.ahead
        if now >= self._look_ahead_at:
            self._look_ahead_at = now + LOOK_AHEAD_SECONDS
            still = self._ahead & self._buffer.far_ahead(limit // 2)
            self._ahead = self._buffer.far_ahead(limit) | still
        return self._ahead

    def _must_pause(self, partition: Partition) -> bool:
        return self._draining or (self._main_full and not self.is_retry(partition.topic))

    def _over_their_share(self) -> set[Partition]:
        """Partitions of retry topics that fill the delay buffer. All others together can take as much again, and no more."""
        limits, held = self._settings.limits, self._buffer.retries()
        sharing = [p for p in self._buffer.assigned() if self.is_retry(p.topic)]

        def fills(partition: Partition) -> float:
            jobs, size = held.get(partition, (0, 0))
            return max(jobs / limits.waiting, size / limits.bytes) * len(sharing)

        return {p for p in sharing if fills(p) >= (0.9 if p in self._paused else 1.0)}

    def fill(self) -> float:
        """How full the buffer for main topics is, from 0 to 1 and a little beyond."""
        load, limits = self._buffer.load(), self._settings.limits
        return max(load.jobs / limits.jobs, load.bytes / limits.bytes)

    def paused(self) -> int:
        return len(self._paused)

    def progress(self) -> dict[Partition, Progress]:
        """How far the partitions have come that are not paused."""
        seen = self._buffer.progress()
        return {partition: seen[partition] for partition in seen.keys() - self._paused}

    # --- rebalances, called from within poll

    def on_assigned(self, partitions: Sequence[Partition]) -> None:
        self._buffer.assign(partitions)
        log.info("partitions assigned", extra={"action": "assigned", "partitions": _names(partitions)})

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        """Drop what has not started, let what runs finish within the bound, commit, forget."""
        self._buffer.withdraw(partitions)
        landed = self._buffer.wait_landed(partitions, self._settings.revoke_timeout)
        self.commit()
        self._forget(partitions)
        log.info(
            "partitions revoked",
            extra={"action": "revoked", "partitions": _names(partitions), "all_done": landed},
        )

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        """Another member owns them already: a commit now would move its offsets back."""
        self._buffer.withdraw(partitions)
        self._forget(partitions)
        log.warning("partitions lost", extra={"action": "lost", "partitions": _names(partitions)})

    def _forget(self, partitions: Sequence[Partition]) -> None:
        self._buffer.forget(partitions)
        self._paused.difference_update(partitions)
        self._ahead.difference_update(partitions)
        for _, offsets in self._sealed:
            for partition in partitions:
                offsets.pop(partition, None)


def _full(was_full: bool, resume_at: float, *fills: float) -> bool:  # noqa: FBT001 - the state of a two-point switch
    return max(fills) >= (resume_at if was_full else 1.0)


def _names(partitions: Sequence[Partition]) -> list[str]:
    return [f"{p.topic}/{p.number}" for p in partitions]
