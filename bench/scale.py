"""What a job costs with more partitions, with more rows in the store, and with a second worker process."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from bench.gated import PROBE
from bench.jobs import app, requests
from bench.place import Figures, Place, child, fresh_place, program
from bench.store import FILL
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.embedded import Servers

__all__ = ["run"]

JOBS = 60_000
ROWS = {0: "0", 1_000_000: "1m", 5_000_000: "5m"}
PATIENCE = 120.0


def run(servers: Servers, *, full: bool) -> Figures:
    """Worker CPU in microseconds a job; without `full` the largest table is left out."""
    figures: Figures = {}
    for partitions in (12, 96):
        with _place(servers, partitions) as place:
            figures[f"partitions.cpu_us_{partitions}"] = _cpu_us(place)
    with _place(servers) as place:
        there = 0
        for rows, name in ROWS.items():
            if full or rows < max(ROWS):
                _fill(place, first=there, last=rows)
                there = rows
                figures[f"rows.cpu_us_{name}"] = _cpu_us(place)
    return figures | workers(servers)


def _place(servers: Servers, partitions: int = 12) -> AbstractContextManager[Place]:
    return fresh_place(servers.bootstrap_servers, servers.postgres_dsn, partitions=partitions)


def _cpu_us(place: Place) -> float:
    child(place, "publish", count=JOBS)
    return child(place, "work", count=JOBS)["cpu_us_per_job"]


def _fill(place: Place, *, first: int, last: int) -> None:
    """Rows of jobs that have completed, up to so many."""
    if last > first:
        with place.app().connection() as connection:
            connection.execute(f'set search_path = "{place.namespace}"'.encode())
            connection.execute(FILL, [first + 1, last])
            connection.execute("vacuum analyze jobs")


def workers(servers: Servers) -> Figures:
    """Two worker processes against one, and what they were short of: how busy all cores of the machine were."""
    one, two = _drained_by(servers, 1), _drained_by(servers, 2)
    return {
        "workers.one_jobs_per_s": one["jobs_per_s"],
        "workers.two_jobs_per_s": two["jobs_per_s"],
        "workers.two_to_one_ratio": two["jobs_per_s"] / one["jobs_per_s"],
        "workers.one_cpu_us_per_job": one["cpu_us"],
        "workers.two_cpu_us_per_job": two["cpu_us"],
        "workers.one_machine_busy": one["busy"],
        "workers.two_machine_busy": two["busy"],
    }


def _drained_by(servers: Servers, count: int) -> Figures:
    with (
        _place(servers) as place,
        tempfile.TemporaryDirectory() as name,
        ThreadPoolExecutor(count) as pool,
    ):
        folder = Path(name)
        running = [pool.submit(program, place, "bench.gated", name) for _ in range(count)]
        try:
            _publish(place, folder, workers=count)
            busy_before = psutil.cpu_times()
            (folder / "go").touch()
            _wait_drained(place)
            busy = _busy(busy_before)
        finally:
            (folder / "go").touch()
            (folder / "stop").touch()
        ends = [worker.result() for worker in running]
    seconds = max(end["last"] for end in ends) - min(end["first"] for end in ends)
    jobs = sum(end["jobs"] for end in ends)
    cpu = sum(end["cpu"] for end in ends)
    return {"jobs_per_s": jobs / seconds, "cpu_us": cpu / jobs * 1e6, "busy": busy}


def _publish(place: Place, folder: Path, *, workers: int) -> None:
    """Probes until every worker has run one, then the backlog."""
    app.configure(place.app().settings)
    deadline = time.monotonic() + PATIENCE
    with app.publisher() as publisher:
        number = 0
        while len(list(folder.glob("ready-*"))) < workers:
            for request in requests(24, first=number):
                payload = request.payload.model_copy(update={"labels": {"origin": PROBE}})  # type: ignore[union-attr]
                publisher.publish(request.job_type, payload, tenant=request.tenant)
            number += 24
            _check(deadline, f"{workers} workers run jobs")
            time.sleep(0.2)
    child(place, "publish", count=2 * JOBS)


def _wait_drained(place: Place) -> None:
    ours = place.app()
    admin = KafkaAdmin(ours.admin_config())
    topics = [ours.names.main("default")]
    deadline = time.monotonic() + PATIENCE
    while any(
        position.end > (position.committed or 0)
        for position in admin.group_lag(f"{place.namespace}.default", topics).values()
    ):
        _check(deadline, "the backlog is drained")
        time.sleep(0.2)


def _check(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"{PATIENCE:g} s passed, but not yet: {what}")


def _busy(before: object) -> float:
    """The part of all cores' time since then that was not idle."""
    now = psutil.cpu_times()
    spent = [end - start for end, start in zip(now, before, strict=True)]  # type: ignore[call-overload]
    idle = spent[now._fields.index("idle")] + spent[now._fields.index("iowait")]
    total = sum(spent) - spent[now._fields.index("guest")] - spent[now._fields.index("guest_nice")]
    return float(1 - idle / total)
