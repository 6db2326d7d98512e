"""Forgets, bit by bit, what has ended long ago: one worker at a time, at the pace of its store."""

from __future__ import annotations

import logging
import threading

from pipeline.core.backoff import Random
from pipeline.core.clock import Clock
from pipeline.core.metrics import Metrics
from pipeline.core.ports import Pruning
from pipeline.errors import PipelineError

__all__ = ["Pruner"]

log = logging.getLogger("pipeline.prune")

IDLE_SECONDS = 60.0  # between looks whether it is time, in the mean
STEP_SECONDS = 1.0  # between two turns, and not less than a turn took: half of the time is the others'


class Pruner:
    """`loop` on a thread of its own until `stop`. With `keep` None nothing is ever forgotten."""

    def __init__(
        self, *, pruning: Pruning, keep: float | None, metrics: Metrics, clock: Clock, rng: Random
    ) -> None:
        self._pruning = pruning
        self._keep = keep
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._stopped = threading.Event()

    def loop(self) -> None:
        wait = self._rng.random() * IDLE_SECONDS  # workers are often started together
        while self._keep is not None and not self._stopped.wait(wait):
            wait = self.step(self._keep)
        self._pruning.close()

    def step(self, keep: float) -> float:
        """Take a turn if there is one; give the seconds until the next look."""
        began = self._clock.monotonic()
        try:
            pruned = self._pruning.turn(keep)
        except (
            PipelineError
        ) as error:  # an outage, or a newer release that migrates: no reason to stop working
            log.warning("cannot forget old jobs: %s", error, extra={"action": "prune_failed"})
            return IDLE_SECONDS
        if pruned is None:
            return IDLE_SECONDS * (0.5 + self._rng.random())  # not all workers at once
        self._metrics.pruned("job", pruned.jobs)
        self._metrics.pruned("worker", pruned.workers)
        if not pruned.over:
            return max(STEP_SECONDS, self._clock.monotonic() - began)
        if pruned.in_round or pruned.workers:
            log.info(
                "forgot what ended long ago",
                extra={"action": "pruned", "jobs": pruned.in_round, "workers": pruned.workers},
            )
        return IDLE_SECONDS

    def stop(self) -> None:
        self._stopped.set()
