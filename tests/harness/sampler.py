"""Looks at a group's committed offsets while faults happen."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.core.offsets import Partition
from pipeline.errors import BrokerUnavailable, TopicsError

__all__ = ["OffsetSampler", "Sample"]

_EVERY = 0.2


class Sample(NamedTuple):
    """What was committed at some moment between two times."""

    asked_at: float
    answered_at: float
    committed: Mapping[Partition, int]


class OffsetSampler:
    """Samples between `__enter__` and `__exit__`. What cannot be asked while the broker is away is left out."""

    def __init__(self, admin: KafkaAdmin, group: str, topics: Sequence[str]) -> None:
        self._admin = admin
        self._group = group
        self._topics = topics
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="offset-sampler")
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stopped.wait(_EVERY):
            asked_at = time.time()
            try:
                found = self._admin.group_lag(self._group, self._topics)
            except (BrokerUnavailable, TopicsError):
                continue
            committed = {place: at.committed for place, at in found.items() if at.committed is not None}
            self.samples.append(Sample(asked_at, time.time(), committed))
