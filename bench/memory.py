"""The memory of a worker on its way through a large backlog: flat, whatever has been done and whatever waits."""

from __future__ import annotations

import json
import os
import sys
import threading

import psutil

from bench.jobs import app, render
from bench.place import Figures, child, fresh_place, program
from pipeline import load_settings
from pipeline.demo.jobs import RenderInvoice
from pipeline.embedded import Servers

__all__ = ["run"]

MARKS = {100_000: "100k", 500_000: "500k", 1_000_000: "1m"}


def run(servers: Servers, *, full: bool) -> Figures:
    """One drain, seen at each size of `MARKS`; only up to the first without `full`."""
    count = max(MARKS) if full else min(MARKS)
    with fresh_place(servers.bootstrap_servers, servers.postgres_dsn) as place:
        child(place, "publish", count=count)
        return program(place, "bench.memory", str(count))


def drain(count: int) -> Figures:
    """Resident memory in MB before the first job, and when so many are done. No line is logged for each move of a job."""
    done = 0
    figures: Figures = {}
    lock = threading.Lock()
    app.configure(load_settings({"log.moves": "false"}))

    @app.handler(render)
    def noop(_job: RenderInvoice) -> None:
        nonlocal done
        with lock:
            if not done:
                figures["memory.rss_mb_at_start"] = _rss_mb()
            done += 1
            if done in MARKS:
                figures[f"memory.rss_mb_at_{MARKS[done]}"] = _rss_mb()
            if done == count:
                worker.stop()

    worker = app.worker()
    assert worker.run() == 0
    return figures


def _rss_mb() -> float:
    return float(psutil.Process(os.getpid()).memory_info().rss) / 2**20


if __name__ == "__main__":
    print(json.dumps(drain(int(sys.argv[1]))))
