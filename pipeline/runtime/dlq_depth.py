"""Tells now and then how many dead letters of a queue wait for an operator."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pipeline.core.metrics import Metrics
from pipeline.errors import StoreUnavailable

__all__ = ["DepthGauge"]

log = logging.getLogger("pipeline.dlq")

EVERY_SECONDS = 15.0


class DepthGauge:
    """`loop` on a thread of its own until `stop`. `count` asks the store, and may take its time."""

    def __init__(
        self, *, count: Callable[[str], int], metrics: Metrics, queue: str, interval: float = EVERY_SECONDS
    ) -> None:
        self._count = count
        self._metrics = metrics
        self._queue = queue
        self._interval = interval
        self._stopped = threading.Event()

    def loop(self) -> None:
        wait = 0.0
        while not self._stopped.wait(wait):
            wait = self._interval
            try:
                self._metrics.set_dlq_depth(self._queue, self._count(self._queue))
            except StoreUnavailable as error:
                if not self._stopped.is_set():
                    log.warning("cannot count dead letters: %s", error, extra={"action": "count_failed"})

    def stop(self) -> None:
        self._stopped.set()
