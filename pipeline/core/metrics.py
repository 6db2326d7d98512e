"""One catalogue of metrics, and the seam through which they are counted.

Labels are bounded: job type (only declared ones; any other is `unknown`), queue, outcome, kind of topic. The tenant is
never a label: there may be any number of them. Counting is by batch, so that a job costs a share of one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

__all__ = [
    "CATALOGUE",
    "DEAD_OUTCOMES",
    "OPEN_KINDS",
    "OTHER",
    "UNKNOWN",
    "MetricKind",
    "MetricSpec",
    "Metrics",
    "NoMetrics",
]

UNKNOWN = "unknown"
OTHER = "other"
# Why a job died, as a label: any other reason is counted as `other`.
DEAD_OUTCOMES = (
    "max_attempts",
    "give_up_after",
    "permanent",
    "rejected",
    "malformed",
    "undecodable",
    "unknown_schema",
    "unknown_job_type",
    "poison",
    "too_large",
    OTHER,
)
# Why a breaker opened by itself.
OPEN_KINDS = ("failures", "ratio", "dlq_flood")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_JOB = ("job_type", "queue")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(NamedTuple):
    """A metric: its name as scraped, its labels, its meaning. `bounds` are those of a histogram's buckets."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str
    bounds: tuple[float, ...] = ()


def _counter(name: str, meaning: str, labels: tuple[str, ...] = _JOB) -> MetricSpec:
    return MetricSpec(f"pipeline_{name}_total", MetricKind.COUNTER, labels, meaning)


def _gauge(name: str, meaning: str, labels: tuple[str, ...] = ("queue",)) -> MetricSpec:
    return MetricSpec(f"pipeline_{name}", MetricKind.GAUGE, labels, meaning)


def _histogram(name: str, meaning: str, labels: tuple[str, ...] = _JOB) -> MetricSpec:
    return MetricSpec(f"pipeline_{name}_seconds", MetricKind.HISTOGRAM, labels, meaning, _SECONDS)


ENQUEUED = _counter("jobs_enqueued", "Jobs whose publishing the broker acknowledged.")
CLAIMED = _counter("jobs_claimed", "Jobs that a worker was granted to run: one for each attempt.")
COMPLETED = _counter("jobs_completed", "Jobs that ended well.")
FAILED = _counter("jobs_failed", "Attempts that failed.")
RETRIED = _counter("jobs_retried", "Failed attempts that will be tried again.")
SNOOZED = _counter("jobs_snoozed", "Jobs that their handler put off without burning an attempt.")
CANCELLED = _counter("jobs_cancelled", "Jobs that were cancelled.")
DEAD = _counter("jobs_dead", "Jobs that were sent to the DLQ, by why.", (*_JOB, "outcome"))
DUPLICATES = _counter(
    "jobs_duplicates", "Records that were dropped because their job has run or runs already."
)
HELD = _counter("jobs_held", "Claims put off because a live worker holds the job.")
RESCUED = _counter("jobs_rescued", "Jobs that were taken over from a dead worker.")
CRASHED = _counter("jobs_crashed", "Runs that ended with the process in which the job ran alone.")
FENCED = _counter(
    "settles_fenced", "Settles refused for an old fencing token: the worker had lost its lease."
)
STUCK = _counter(
    "partitions_stuck",
    "Partitions found stuck: records were there, and none came; the worker joined anew.",
    ("queue",),
)
LAG = _gauge(
    "queue_lag", "Records not yet done in this worker's partitions; kind is main or retry.", ("queue", "kind")
)
DLQ_DEPTH = _gauge("dlq_depth", "Dead letters of the queue that wait for an operator.")
BUFFER_FILL = _gauge(
    "buffer_fill", "How full the worker's buffer is, 0 to 1; partitions are paused when it is full."
)
RUNNING = _gauge("jobs_running", "Handlers that are running now.")
DELAYED = _gauge("jobs_delayed", "Jobs that wait in memory until they are due.")
SETTLES_HELD = _gauge(
    "settles_held",
    "Jobs that ran and are held, because Kafka refuses their next record: retry or dead letter.",
)
BREAKER = _gauge(
    "breaker_state",
    "The breaker of the job type: 0 closed, 1 half-open, 2 open. Of breakers per tenant, the worst.",
    ("job_type", "queue"),
)
SHELVED = _gauge(
    "breaker_waiting", "Jobs that wait in this worker because their breaker is open.", ("job_type", "queue")
)
OPENED = _counter(
    "breaker_opened",
    "Times that a breaker opened, told by the worker that opened it; kind is why.",
    (*_JOB, "kind"),
)
EXPIRED = _counter(
    "records_expired",
    "Records that their topic deleted before their jobs had ended: these jobs are lost. kind is main or retry.",
    ("queue", "kind"),
)
PRUNED = _counter(
    "store_pruned",
    "Rows that this worker deleted from the store after postgres.retention; kind is job or worker.",
    ("kind",),
)
PROCESSING = _histogram(
    "job_processing", "From the start of a handler to its end, by how it ended.", (*_JOB, "outcome")
)
WAITING = _histogram(
    "job_waiting", "From enqueueing, or the end of a retry's delay, to the start of the handler."
)

CATALOGUE = (
    ENQUEUED,
    CLAIMED,
    COMPLETED,
    FAILED,
    RETRIED,
    SNOOZED,
    CANCELLED,
    DEAD,
    DUPLICATES,
    HELD,
    RESCUED,
    CRASHED,
    FENCED,
    STUCK,
    LAG,
    DLQ_DEPTH,
    BUFFER_FILL,
    RUNNING,
    DELAYED,
    SETTLES_HELD,
    BREAKER,
    SHELVED,
    OPENED,
    EXPIRED,
    PRUNED,
    PROCESSING,
    WAITING,
)


class Metrics(Protocol):
    """What publishers and workers count. Safe to call from several threads; never blocks on I/O, never raises."""

    def enqueued(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def claimed(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def completed(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def failed(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def retried(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def snoozed(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def cancelled(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def dead(self, job_type: str, queue: str, n: int = 1, *, outcome: str) -> None:
        """`outcome` is the reason of the dead letter; see `DEAD_OUTCOMES`."""
        ...

    def duplicates(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def held(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def rescued(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def crashed(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def fenced(self, job_type: str, queue: str, n: int = 1) -> None: ...

    def partitions_stuck(self, queue: str, n: int = 1) -> None: ...

    def observe_processing(self, job_type: str, queue: str, values: Sequence[float], *, outcome: str) -> None:
        """Many run times at once, in seconds. `outcome` is the state that the runs led to."""
        ...

    def observe_waiting(self, job_type: str, queue: str, values: Sequence[float]) -> None: ...

    def set_lag(self, queue: str, kind: str, records: float) -> None: ...

    def set_dlq_depth(self, queue: str, records: float) -> None: ...

    def set_buffer_fill(self, queue: str, ratio: float) -> None: ...

    def set_running(self, queue: str, jobs: float) -> None: ...

    def set_delayed(self, queue: str, jobs: float) -> None: ...

    def set_settles_held(self, queue: str, jobs: float) -> None: ...

    def set_breaker(self, job_type: str, queue: str, state: float) -> None: ...

    def set_shelved(self, job_type: str, queue: str, jobs: float) -> None: ...

    def breaker_opened(self, job_type: str, queue: str, n: int = 1, *, kind: str) -> None: ...

    def expired(self, queue: str, kind: str, n: int) -> None: ...

    def pruned(self, kind: str, n: int) -> None: ...


class NoMetrics:
    """Counts nothing: for publishers and tests that have nobody to tell."""

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    enqueued = claimed = completed = failed = retried = snoozed = cancelled = dead = _ignore
    duplicates = held = rescued = crashed = fenced = partitions_stuck = _ignore
    observe_processing = observe_waiting = _ignore
    set_lag = set_dlq_depth = set_buffer_fill = set_running = set_delayed = set_settles_held = _ignore
    set_breaker = set_shelved = breaker_opened = expired = pruned = _ignore
