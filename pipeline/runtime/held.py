"""What a buffer holds, counted by kind: how full it is, and which partitions must wait."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pipeline.core.offsets import Partition
from pipeline.runtime.delivery import Delivery

__all__ = ["Aside", "Held", "Limits", "Load", "Waiting"]


class Limits(NamedTuple):
    """When to stop fetching: `jobs` from main topics, `waiting` from retry topics; of each no more than `bytes`.

    Jobs that wait aside for their key may be as many as `waiting`, with as many bytes. In one partition, `ahead` records may be
    received from the first unfinished one on.
    """

    jobs: int
    bytes: int
    waiting: int
    ahead: int = 200_000


class Aside(NamedTuple):
    """Jobs of main topics that wait for their key: behind another job, or for their next attempt."""

    jobs: int
    bytes: int
    partitions: frozenset[Partition]


class Load(NamedTuple):
    """What is held now, of main topics (`jobs`, `bytes`) and of retry topics (`waiting`, `waiting_bytes`)."""

    jobs: int
    bytes: int
    waiting: int
    waiting_bytes: int


class Waiting(NamedTuple):
    """What is held of one partition of a retry topic."""

    jobs: int
    bytes: int


class Held:
    """The account of a buffer. Not thread-safe: its owner guards it."""

    def __init__(self) -> None:
        self._jobs = self._bytes = 0
        self._retries: Counter[Partition] = Counter()
        self._retry_bytes: Counter[Partition] = Counter()
        self._aside: Counter[Partition] = Counter()
        self._aside_bytes = 0

    def load(self) -> Load:
        return Load(self._jobs, self._bytes, self._retries.total(), self._retry_bytes.total())

    def retries(self) -> dict[Partition, Waiting]:
        """By partition; those of which nothing is held may be left out."""
        return {p: Waiting(jobs, self._retry_bytes[p]) for p, jobs in self._retries.items()}

    def aside(self) -> Aside:
        return Aside(self._aside.total(), self._aside_bytes, frozenset(self._aside))

    def count(self, delivery: Delivery) -> None:
        if delivery.is_retry:
            self._add_retry(delivery, 1)
        elif delivery.aside:
            self._add_aside(delivery, 1)
        else:
            self._jobs += 1
            self._bytes += delivery.size

    def uncount(self, delivery: Delivery) -> None:
        if delivery.is_retry:
            self._add_retry(delivery, -1)
        elif delivery.aside:
            self._add_aside(delivery, -1)
        else:
            self._jobs -= 1
            self._bytes -= delivery.size

    def set_aside(self, delivery: Delivery, *, aside: bool) -> None:
        """Count it elsewhere from here on."""
        self.uncount(delivery)
        delivery.aside = aside
        self.count(delivery)

    def _add_retry(self, delivery: Delivery, sign: int) -> None:
        self._retries[delivery.partition] += sign
        self._retry_bytes[delivery.partition] += sign * delivery.size

    def _add_aside(self, delivery: Delivery, sign: int) -> None:
        self._aside_bytes += sign * delivery.size
        self._aside[delivery.partition] += sign
        if not self._aside[delivery.partition]:
            del self._aside[delivery.partition]
