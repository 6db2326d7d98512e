"""Tells of breakers, in logs, metrics and the audit trail: what changed, and how many jobs wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from pipeline.core.breaker import BreakerKey, BreakerState, Circuit, OpenReason
from pipeline.core.events import BreakerChange, breaker_change
from pipeline.core.metrics import Metrics
from pipeline.runtime.breaker_view import Change

__all__ = ["BreakerNews"]

log = logging.getLogger("pipeline.breaker")

_GAUGE = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class BreakerNews:
    """Every worker logs every change; `on_change` is given those that this worker made, so that the trail has each once."""

    def __init__(
        self,
        *,
        worker_id: str,
        queue: str,
        metrics: Metrics,
        on_change: Callable[[BreakerChange], None],
    ) -> None:
        self._worker_id = worker_id
        self._queue = queue
        self._metrics = metrics
        self._on_change = on_change
        self._shown: dict[str, int] = {}

    def begin(self, job_types: Iterable[str]) -> None:
        """Show a closed breaker for each of these job types."""
        for job_type in job_types:
            self._metrics.set_breaker(job_type, self._queue, 0)

    def tell(self, change: Change, circuits: Mapping[BreakerKey, Circuit]) -> None:
        """`circuits` are all that are known, the changed one among them."""
        key, before, after = change
        if after.by == self._worker_id:
            if after.opened > before.opened:
                self._metrics.breaker_opened(key.job_type, self._queue, kind=after.reason)
            self._on_change(breaker_change(key, before, after, queue=self._queue))
        self._log(change)
        states = [
            _GAUGE[circuit.state] for each, circuit in circuits.items() if each.job_type == key.job_type
        ]
        self._metrics.set_breaker(key.job_type, self._queue, max(states, default=0))

    def _log(self, change: Change) -> None:
        key, before, after = change
        level, words = _words(before, after)
        log.log(
            level,
            "breaker of %s: %s",
            key.job_type,
            words,
            extra={
                "action": f"breaker_{after.state}",
                "job_type": key.job_type,
                "tenant": key.tenant,
                "reason": after.reason or before.reason,
                "by": after.by,
            },
        )

    def show_shelved(self, shelved: Mapping[BreakerKey, int]) -> None:
        """How many jobs wait, by what they wait for."""
        by_type: dict[str, int] = dict.fromkeys(self._shown, 0)
        for key, jobs in shelved.items():
            by_type[key.job_type] = by_type.get(key.job_type, 0) + jobs
        for job_type, jobs in by_type.items():
            self._metrics.set_shelved(job_type, self._queue, jobs)
        self._shown = {job_type: jobs for job_type, jobs in by_type.items() if jobs}

    def clogged(self, job_type: str) -> None:
        """No more jobs of this type are started."""
        log.error(
            "no more jobs of %s are started: Kafka refuses the next records of those that ran",
            job_type,
            extra={"action": "clogged", "job_type": job_type},
        )

    def store_away(self, what: str, error: Exception) -> None:
        log.warning("cannot %s: %s", what, error, extra={"action": "breaker_store_failed"})


def _words(before: Circuit, after: Circuit) -> tuple[int, str]:
    """How loud a change is told, and in which words."""
    if after.state is BreakerState.CLOSED:
        return logging.WARNING, "closed, its jobs are let go gradually"
    if after.state is BreakerState.HALF_OPEN:
        return logging.INFO, "half-open, one job is tried"
    if before.state is not BreakerState.CLOSED:
        return logging.WARNING, "the job that was tried tells no better, its jobs wait on"
    return {
        OpenReason.FAILURES: (logging.ERROR, "open after failures in a row, its jobs wait"),
        OpenReason.RATIO: (logging.ERROR, "open, too many of its runs fail, its jobs wait"),
        OpenReason.DLQ_FLOOD: (
            logging.CRITICAL,
            "open, most of its jobs would die: they wait instead of draining their topic into the DLQ",
        ),
        OpenReason.OPERATOR: (logging.WARNING, "opened by hand, its jobs wait"),
    }[OpenReason(after.reason)]
