"""A handler that takes as long as the benchmark wants: `pipeline worker bench.recovery_app:app`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.jobs import app, render
from pipeline.demo.jobs import RenderInvoice

__all__ = ["GATE", "app"]

GATE = "BENCH_GATE"  # the environment variable that names the file which ends all waiting


@app.handler(render)
def wait(job: RenderInvoice) -> None:
    gate = Path(os.environ[GATE])
    while job.labels["origin"] == "held" and not gate.exists():
        time.sleep(0.01)
