"""Metrics: the catalogue, and what Prometheus gets to see."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.adapters.prometheus import PrometheusMetrics
from pipeline.core.metrics import CATALOGUE, DEAD_OUTCOMES, OPEN_KINDS, MetricKind, Metrics, NoMetrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
COUNTS = (
    "enqueued",
    "claimed",
    "completed",
    "failed",
    "retried",
    "snoozed",
    "cancelled",
    "duplicates",
    "held",
    "rescued",
    "crashed",
    "fenced",
)


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics({"email.send", "invoice.render"})


def samples(metrics: PrometheusMetrics) -> Samples:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float:
    return samples(metrics)[(name, tuple(sorted(labels.items())))]


def metric_methods() -> list[str]:
    return [name for name, _ in inspect.getmembers(Metrics, inspect.isfunction) if not name.startswith("_")]


def test_the_catalogue_names_each_metric_once_with_a_meaning_and_never_the_tenant() -> None:
    names = [spec.name for spec in CATALOGUE]
    assert len(set(names)) == len(names)
    for spec in CATALOGUE:
        assert spec.name.startswith("pipeline_")
        assert spec.name.endswith("_total") == (spec.kind is MetricKind.COUNTER)
        assert bool(spec.bounds) == (spec.kind is MetricKind.HISTOGRAM)
        assert list(spec.bounds) == sorted(spec.bounds)
        assert set(spec.labels) <= {"job_type", "queue", "outcome", "kind"}
        assert spec.meaning.endswith(".")


def test_counting_nothing_has_the_same_methods() -> None:
    nothing: Metrics = NoMetrics()
    for name in metric_methods():
        assert callable(getattr(nothing, name))
    nothing.claimed("email.send", "default", 5)
    nothing.observe_processing("email.send", "default", [1.0], outcome="completed")


@pytest.mark.parametrize("name", COUNTS)
def test_counts_add_up_under_their_own_name(metrics: PrometheusMetrics, name: str) -> None:
    getattr(metrics, name)("email.send", "default", 5)
    getattr(metrics, name)("email.send", "default")
    exposed = "settles_fenced" if name == "fenced" else f"jobs_{name}"
    assert value(metrics, f"pipeline_{exposed}_total", job_type="email.send", queue="default") == 6
    assert sum(number for (key, _), number in samples(metrics).items() if key.startswith("pipeline_")) == 6


def test_every_metric_of_the_catalogue_has_a_way_in(metrics: PrometheusMetrics) -> None:
    for name in COUNTS:
        getattr(metrics, name)("email.send", "default")
    metrics.dead("email.send", "default", outcome="poison")
    metrics.observe_processing("email.send", "default", [1.0], outcome="completed")
    metrics.observe_waiting("email.send", "default", [1.0])
    metrics.partitions_stuck("default")
    metrics.set_lag("default", "main", 1)
    metrics.set_dlq_depth("default", 1)
    metrics.set_buffer_fill("default", 1)
    metrics.set_running("default", 1)
    metrics.set_delayed("default", 1)
    metrics.set_settles_held("default", 1)
    metrics.set_breaker("email.send", "default", 1)
    metrics.set_shelved("email.send", "default", 1)
    metrics.breaker_opened("email.send", "default", kind="failures")
    metrics.expired("default", "retry", 1)
    metrics.pruned("job", 1)
    seen = {name.removesuffix("_count") for (name, _), number in samples(metrics).items() if number == 1}
    assert {spec.name for spec in CATALOGUE} <= seen


def test_all_counters_of_a_job_type_start_at_zero_together(metrics: PrometheusMetrics) -> None:
    metrics.claimed("email.send", "default")
    job = {"job_type": "email.send", "queue": "default"}
    assert value(metrics, "pipeline_settles_fenced_total", **job) == 0
    for outcome in DEAD_OUTCOMES:
        assert value(metrics, "pipeline_jobs_dead_total", outcome=outcome, **job) == 0
    for kind in OPEN_KINDS:
        assert value(metrics, "pipeline_breaker_opened_total", kind=kind, **job) == 0


def test_undeclared_job_types_and_reasons_share_one_series(metrics: PrometheusMetrics) -> None:
    metrics.dead("email.send", "default", outcome="max_attempts")
    before = 0
    for n in range(50):
        metrics.dead(f"made.up.{n}", "default", outcome=f"made-up-{n}")
        metrics.observe_waiting(f"made.up.{n}", "default", [1.0])
        if n == 0:
            before = len(samples(metrics))
    assert len(samples(metrics)) == before
    assert (
        value(metrics, "pipeline_jobs_dead_total", job_type="unknown", queue="default", outcome="other") == 50
    )


def test_a_job_type_that_is_declared_later_is_counted_under_its_name() -> None:
    declared: set[str] = set()
    metrics = PrometheusMetrics(declared)
    metrics.claimed("late", "default")
    declared.add("late")
    metrics.claimed("late", "default")
    assert value(metrics, "pipeline_jobs_claimed_total", job_type="unknown", queue="default") == 1
    assert value(metrics, "pipeline_jobs_claimed_total", job_type="late", queue="default") == 1


def test_run_times_fall_into_buckets_that_count_upward(metrics: PrometheusMetrics) -> None:
    metrics.observe_processing("email.send", "default", [0.001, 0.0011, 7.0], outcome="completed")
    metrics.observe_processing("email.send", "default", [9_999.0], outcome="completed")
    labels = {"job_type": "email.send", "queue": "default", "outcome": "completed"}
    name = "pipeline_job_processing_seconds"
    counted = [
        value(metrics, f"{name}_bucket", le=le, **labels)
        for le in ("0.001", "0.0025", "10.0", "3600.0", "+Inf")
    ]
    assert counted == [1, 2, 3, 3, 4]
    assert value(metrics, f"{name}_count", **labels) == 4
    assert value(metrics, f"{name}_sum", **labels) == pytest.approx(10_006.0021)


def test_clocks_that_disagree_cannot_make_a_sum_fall(metrics: PrometheusMetrics) -> None:
    metrics.observe_waiting("email.send", "default", [-5.0, 2.0])
    labels = {"job_type": "email.send", "queue": "default"}
    assert value(metrics, "pipeline_job_waiting_seconds_sum", **labels) == 2
    assert value(metrics, "pipeline_job_waiting_seconds_count", **labels) == 2


def test_gauges_show_the_last_value(metrics: PrometheusMetrics) -> None:
    metrics.set_lag("default", "main", 5)
    metrics.set_lag("default", "main", 3)
    metrics.set_lag("default", "retry", 8)
    assert value(metrics, "pipeline_queue_lag", queue="default", kind="main") == 3
    assert value(metrics, "pipeline_queue_lag", queue="default", kind="retry") == 8


def test_counting_from_several_threads_loses_nothing(metrics: PrometheusMetrics) -> None:
    def count() -> None:
        for _ in range(2_000):
            metrics.claimed("email.send", "default", 2)
            metrics.observe_waiting("email.send", "default", [0.5])

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        metrics.exposition()
    for thread in threads:
        thread.join()
    labels = {"job_type": "email.send", "queue": "default"}
    assert value(metrics, "pipeline_jobs_claimed_total", **labels) == 16_000
    assert value(metrics, "pipeline_job_waiting_seconds_count", **labels) == 8_000


def test_two_sets_of_metrics_do_not_meet() -> None:
    first, second = PrometheusMetrics({"a"}), PrometheusMetrics({"a"})
    first.claimed("a", "default")
    assert not [name for name, _ in samples(second) if name.startswith("pipeline_")]


def test_the_process_itself_is_measured_where_the_system_tells(metrics: PrometheusMetrics) -> None:
    measured = ("process_cpu_seconds_total", ()) in samples(metrics)
    assert measured == Path("/proc/self/stat").is_file()
