"""How long the jobs of a worker take that is killed: with the settings as they are, until others have done all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.jobs import app, requests
from bench.place import Figures, Place
from bench.recovery_app import GATE
from pipeline import JobRequest, Publisher

__all__ = ["run"]

IN_FLIGHT = 16
PATIENCE = 120.0
STEP = 0.02

_Worker = subprocess.Popen[bytes]


def run(place: Place, *, rounds: int = 1) -> dict[str, float]:
    """The worst of several rounds: where in its heartbeat a worker is killed makes seconds of difference."""
    return max(
        (_round(place, number) for number in range(rounds)), key=lambda round_: round_["recovery.all_done_s"]
    )


def _round(place: Place, number: int) -> Figures:
    with ExitStack() as stack:
        gate = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gate"
        workers = [stack.enter_context(_worker(place, gate)) for _ in range(2)]
        database = stack.enter_context(place.app().connection())
        app.configure(place.app().settings)
        jobs = _Jobs(place, database, stack.enter_context(app.publisher()), number)
        _until(lambda: jobs.sharing(workers), "both workers run jobs")
        victim, ids = jobs.fill(workers)
        victim.kill()
        killed = time.perf_counter()
        gate.touch()
        _until(lambda: jobs.all_done(ids), f"{len(ids)} jobs of the killed worker are done")
        seconds = time.perf_counter() - killed
        first, last = jobs.claimed_ago(ids)
        return {
            "recovery.first_claimed_s": seconds - first,
            "recovery.all_claimed_s": seconds - last,
            "recovery.all_done_s": seconds,
        }


class _Jobs:
    """Publishes jobs one at a time, and sees in the store who runs them."""

    def __init__(
        self, place: Place, database: psycopg.Connection[Any], publisher: Publisher, number: int
    ) -> None:
        self._table = f'"{place.namespace}".jobs'
        self._database = database
        self._publisher = publisher
        self._requests = requests(10_000, first=number * 10_000)

    def sharing(self, workers: list[_Worker]) -> bool:
        ids = [self._publish(held=False) for _ in range(24)]
        _until(lambda: self.all_done(ids), "jobs are done")
        owners = {pid for _, pid in self._rows("completed", ids)}
        return owners == {worker.pid for worker in workers}

    def fill(self, workers: list[_Worker]) -> tuple[_Worker, list[str]]:
        """Give a worker so many jobs that do not end; give the worker and the jobs."""
        ids: list[str] = []
        while True:
            ids.append(self._publish(held=True))
            _until(lambda: len(self._rows("running", ids)) == len(ids), "a job runs")
            for worker in workers:
                its = [job_id for job_id, pid in self._rows("running", ids) if pid == worker.pid]
                if len(its) == IN_FLIGHT:
                    return worker, its

    def all_done(self, ids: list[str]) -> bool:
        return len(self._rows("completed", ids)) == len(ids)

    def claimed_ago(self, ids: list[str]) -> tuple[float, float]:
        """How many seconds ago the first and the last of these jobs were claimed."""
        row = self._database.execute(
            "select extract(epoch from now() - min(claimed_at)), extract(epoch from now() - max(claimed_at)) "
            f"from {self._table} where job_id = any(%s::uuid[])".encode(),
            [ids],
        ).fetchone()
        assert row is not None
        return float(row[0]), float(row[1])

    def _publish(self, *, held: bool) -> str:
        request: JobRequest = next(self._requests)
        labels = {"origin": "held" if held else "probe"}
        payload = request.payload.model_copy(update={"labels": labels})  # type: ignore[union-attr]
        return self._publisher.publish(request.job_type, payload, tenant=request.tenant).job_id

    def _rows(self, state: str, ids: list[str]) -> list[tuple[str, int]]:
        """Jobs in a state, each with the process id of its worker."""
        found = self._database.execute(
            f"select job_id::text, worker_id from {self._table} where state = %s and job_id = any(%s::uuid[])".encode(),
            [state, ids],
        )
        return [(job_id, int(worker_id.rsplit("-", 2)[1])) for job_id, worker_id in found]


@contextmanager
def _worker(place: Place, gate: Path) -> Iterator[_Worker]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "worker", "bench.recovery_app:app"],
            env={**os.environ, **place.environment, GATE: str(gate)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{PATIENCE:g} s passed, but not yet: {what}")
        time.sleep(STEP)
