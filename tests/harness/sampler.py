"""Looks at a group's committed offsets while faults happen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.core.offsets import Partition
from pipeline.errors import BrokerUnavailable, TopicsError
from tests.harness.background import Background

__all__ = ["OffsetSampler", "Sample"]

_EVERY = 0.2


class Sample(NamedTuple):
    """What was committed at some moment between two times."""

    asked_at: float
    answered_at: float
    committed: Mapping[Partition, int]


class OffsetSampler(Background):
    """Samples between `__enter__` and `__exit__`. What cannot be asked while the broker is away is left out."""

    def __init__(self, admin: KafkaAdmin, group: str, topics: Sequence[str]) -> None:
        self._admin = admin
        self._group = group
        self._topics = topics
        super().__init__("offset-sampler")
        self.samples: list[Sample] = []

    def _loop(self) -> None:
        while not self._stopped.wait(_EVERY):
            asked_at = time.time()
            try:
                found = self._admin.group_lag(self._group, self._topics)
            except (BrokerUnavailable, TopicsError):
                continue
            committed = {place: at.committed for place, at in found.items() if at.committed is not None}
            self.samples.append(Sample(asked_at, time.time(), committed))
