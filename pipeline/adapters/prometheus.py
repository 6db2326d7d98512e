"""Metrics for Prometheus: numbers of our own, handed over when they are scraped.

The client library's histogram takes one value at a time, with two locks each. Here a batch costs one lock, and the
library does what it is best at: families, escaping, the text format.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.core import metrics as catalogue
from pipeline.core.metrics import CATALOGUE, DEAD_OUTCOMES, OPEN_KINDS, OTHER, UNKNOWN, MetricKind, MetricSpec

__all__ = ["PrometheusMetrics"]

Labels = tuple[str, ...]
_JOB_COUNTERS = tuple(
    spec for spec in CATALOGUE if spec.kind is MetricKind.COUNTER and spec.labels == ("job_type", "queue")
)


class _Distribution:
    """One histogram child: how many values fell at or below each bound, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0

    def add(self, bounds: Sequence[float], values: Sequence[float]) -> None:
        counts = self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    def buckets(self, bounds: Sequence[float]) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, map(float, bounds)), "+Inf"), self.counts, strict=True):
            running += count
            found.append((bound, running))
        return found


class PrometheusMetrics(Collector):
    """The catalogue on a registry of its own.

    `job_types` are the declared ones, looked up live; any other is counted as `unknown`, because its name comes from a
    record and there may be any number of such names.
    """

    def __init__(self, job_types: Collection[str]) -> None:
        self._job_types = job_types
        self._lock = threading.Lock()
        self._numbers: dict[str, dict[Labels, float]] = {spec.name: {} for spec in CATALOGUE}
        self._distributions: dict[str, dict[Labels, _Distribution]] = {spec.name: {} for spec in CATALOGUE}
        self._jobs: set[Labels] = set()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Everything in the text format that Prometheus scrapes."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry: a consistent copy of all numbers."""
        with self._lock:
            return iter([self._family(spec) for spec in CATALOGUE])

    def enqueued(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.ENQUEUED, job_type, queue, n)

    def claimed(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.CLAIMED, job_type, queue, n)

    def completed(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.COMPLETED, job_type, queue, n)

    def failed(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.FAILED, job_type, queue, n)

    def retried(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.RETRIED, job_type, queue, n)

    def snoozed(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.SNOOZED, job_type, queue, n)

    def cancelled(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.CANCELLED, job_type, queue, n)

    def dead(self, job_type: str, queue: str, n: int = 1, *, outcome: str) -> None:
        self._count(catalogue.DEAD, job_type, queue, n, outcome if outcome in DEAD_OUTCOMES else OTHER)

    def duplicates(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.DUPLICATES, job_type, queue, n)

    def held(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.HELD, job_type, queue, n)

    def rescued(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.RESCUED, job_type, queue, n)

    def crashed(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.CRASHED, job_type, queue, n)

    def fenced(self, job_type: str, queue: str, n: int = 1) -> None:
        self._count(catalogue.FENCED, job_type, queue, n)

    def partitions_stuck(self, queue: str, n: int = 1) -> None:
        self._add(catalogue.STUCK, (queue,), n)

    def observe_processing(self, job_type: str, queue: str, values: Sequence[float], *, outcome: str) -> None:
        self._observe(catalogue.PROCESSING, (self._bounded(job_type), queue, outcome), values)

    def observe_waiting(self, job_type: str, queue: str, values: Sequence[float]) -> None:
        self._observe(catalogue.WAITING, (self._bounded(job_type), queue), values)

    def set_lag(self, queue: str, kind: str, records: float) -> None:
        self._set(catalogue.LAG, (queue, kind), records)

    def set_dlq_depth(self, queue: str, records: float) -> None:
        self._set(catalogue.DLQ_DEPTH, (queue,), records)

    def set_buffer_fill(self, queue: str, ratio: float) -> None:
        self._set(catalogue.BUFFER_FILL, (queue,), ratio)

    def set_running(self, queue: str, jobs: float) -> None:
        self._set(catalogue.RUNNING, (queue,), jobs)

    def set_delayed(self, queue: str, jobs: float) -> None:
        self._set(catalogue.DELAYED, (queue,), jobs)

    def set_settles_held(self, queue: str, jobs: float) -> None:
        self._set(catalogue.SETTLES_HELD, (queue,), jobs)

    def set_breaker(self, job_type: str, queue: str, state: float) -> None:
        self._set(catalogue.BREAKER, (self._bounded(job_type), queue), state)

    def set_shelved(self, job_type: str, queue: str, jobs: float) -> None:
        self._set(catalogue.SHELVED, (self._bounded(job_type), queue), jobs)

    def breaker_opened(self, job_type: str, queue: str, n: int = 1, *, kind: str) -> None:
        self._count(catalogue.OPENED, job_type, queue, n, kind)

    def expired(self, queue: str, kind: str, n: int) -> None:
        self._add(catalogue.EXPIRED, (queue, kind), n)

    def pruned(self, kind: str, n: int) -> None:
        self._add(catalogue.PRUNED, (kind,), n)

    def _add(self, spec: MetricSpec, labels: Labels, n: int) -> None:
        with self._lock:
            numbers = self._numbers[spec.name]
            numbers[labels] = numbers.get(labels, 0) + n

    def _bounded(self, job_type: str) -> str:
        return job_type if job_type in self._job_types else UNKNOWN

    def _count(self, spec: MetricSpec, job_type: str, queue: str, n: int, *more: str) -> None:
        job = (self._bounded(job_type), queue)
        with self._lock:
            if job not in self._jobs:
                self._introduce(job)
            self._numbers[spec.name][(*job, *more)] += n

    def _introduce(self, job: Labels) -> None:
        # Every counter of a job type starts at 0 together: a rate cannot see a series that begins with its first error.
        self._jobs.add(job)
        for spec in _JOB_COUNTERS:
            self._numbers[spec.name][job] = 0
        for outcome in DEAD_OUTCOMES:
            self._numbers[catalogue.DEAD.name][(*job, outcome)] = 0
        for kind in OPEN_KINDS:
            self._numbers[catalogue.OPENED.name][(*job, kind)] = 0

    def _set(self, spec: MetricSpec, labels: Labels, value: float) -> None:
        with self._lock:
            self._numbers[spec.name][labels] = value

    def _observe(self, spec: MetricSpec, labels: Labels, values: Sequence[float]) -> None:
        # Clocks of two machines differ: a job may seem to start before it was enqueued, and a sum must not fall.
        if values and min(values) < 0:
            values = [max(0.0, value) for value in values]
        with self._lock:
            children = self._distributions[spec.name]
            child = children.get(labels)
            if child is None:
                child = children[labels] = _Distribution(len(spec.bounds) + 1)
            child.add(spec.bounds, values)

    def _family(self, spec: MetricSpec) -> Metric:
        if spec.kind is MetricKind.HISTOGRAM:
            histogram = HistogramMetricFamily(spec.name, spec.meaning, labels=spec.labels)
            for labels, child in self._distributions[spec.name].items():
                histogram.add_metric(labels, child.buckets(spec.bounds), child.total)
            return histogram
        kind = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = kind(spec.name, spec.meaning, labels=spec.labels)
        for labels, number in self._numbers[spec.name].items():
            family.add_metric(labels, number)
        return family
