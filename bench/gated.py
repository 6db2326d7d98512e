"""A worker that is full of no-op jobs before it may start with them: `python -m bench.gated FOLDER`.

So several of them start at the same moment, with the backlog published and the partitions shared out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from bench.jobs import app, render
from bench.place import Figures, run_worker
from pipeline import load_settings
from pipeline.demo.jobs import RenderInvoice

__all__ = ["PROBE", "ready_file"]

PROBE = "probe"  # the origin of jobs that only show who runs them
STEP = 0.01


def ready_file(folder: Path, pid: int) -> Path:
    """Is there once the worker has run a probe."""
    return folder / f"ready-{pid}"


def run(folder: str) -> Figures:
    """Start with the file `go`, leave with the file `stop`; times are epoch seconds."""
    gate, lock, place = threading.Event(), threading.Lock(), Path(folder)
    count = 0
    first = last = cpu_first = cpu_last = 0.0

    @app.handler(render)
    def noop(job: RenderInvoice) -> None:
        nonlocal count, last, cpu_last
        if job.labels["origin"] == PROBE:
            ready_file(place, os.getpid()).touch()
            return
        gate.wait()
        with lock:
            count += 1
            last, cpu_last = time.time(), time.process_time()

    def watch() -> None:
        nonlocal first, cpu_first
        _wait_for(place / "go")
        first, cpu_first = time.time(), time.process_time()
        gate.set()
        _wait_for(place / "stop")
        worker.stop()

    app.configure(load_settings({"log.moves": "false"}))
    worker = app.worker()
    threading.Thread(target=watch, daemon=True).start()
    run_worker(worker)
    return {"jobs": count, "first": first, "last": last, "cpu": cpu_last - cpu_first}


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(STEP)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
