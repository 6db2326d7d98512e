"""The memory of a worker in front of a large backlog: flat, whatever waits and whatever has been done."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from itertools import cycle, islice

import psutil
from confluent_kafka import Producer

from bench.jobs import app, render
from bench.place import Figures, Place, child, fresh_place, program, run_worker
from pipeline import load_settings
from pipeline.adapters.kafka.config import consumer_config, producer_config
from pipeline.adapters.kafka.reader import KafkaReader
from pipeline.core.headers import ID
from pipeline.core.job import Record, new_job_id
from pipeline.demo.jobs import RenderInvoice
from pipeline.embedded import Servers

__all__ = ["run"]

MARKS = {100_000: "100k", 500_000: "500k", 1_000_000: "1m"}
TEMPLATES = 10_000  # records that a publisher wrote; the backlog is made of copies with ids of their own
DRAINED = 30_000


def run(servers: Servers, *, full: bool) -> Figures:
    """Resident memory when `DRAINED` jobs were done of a backlog of each size. With `full` also at each size of one long drain."""
    figures: Figures = {}
    with fresh_place(servers.bootstrap_servers, servers.postgres_dsn) as place:
        templates = _templates(servers, place)
        waiting = TEMPLATES
        for size, name in MARKS.items():
            _copy(servers, templates, size - waiting)
            drained = program(place, "bench.memory", str(DRAINED))
            figures[f"memory.rss_mb_at_{name}"] = drained["rss_mb_at_end"]
            waiting = size - DRAINED
        if full:
            drained = program(place, "bench.memory", str(waiting))
            figures |= {f"memory.long_drain_{key}": value for key, value in drained.items()}
    return figures


def _templates(servers: Servers, place: Place) -> list[Record]:
    child(place, "publish", count=TEMPLATES - 1)  # and one job before, to warm up
    reader = KafkaReader(consumer_config(servers.bootstrap_servers, group="bench"))
    return list(reader.read(place.app().names.main("default")))


def _copy(servers: Servers, templates: list[Record], count: int) -> None:
    producer = Producer(producer_config(servers.bootstrap_servers, linger_ms=5.0))
    for record in islice(cycle(templates), count):
        own = new_job_id(now=time.time(), entropy=os.urandom(10)).encode()
        headers: list[tuple[str, str | bytes | None]] = [
            (name, own if name == ID else value) for name, value in record.headers
        ]
        while True:
            try:
                producer.produce(record.topic, record.value, record.key, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


def drain(count: int) -> Figures:
    """Resident memory in MB on the way through `count` jobs and at their end. No line is logged for each move of a job."""
    done = 0
    figures: Figures = {}
    lock = threading.Lock()
    app.configure(load_settings({"log.moves": "false"}))

    @app.handler(render)
    def noop(_job: RenderInvoice) -> None:
        nonlocal done
        with lock:
            done += 1
            if done in MARKS:
                figures[f"rss_mb_at_{MARKS[done]}"] = _rss_mb()
            if done == count:
                figures["rss_mb_at_end"] = _rss_mb()
                worker.stop()

    worker = app.worker()
    run_worker(worker)
    return figures


def _rss_mb() -> float:
    return float(psutil.Process(os.getpid()).memory_info().rss) / 2**20


if __name__ == "__main__":
    print(json.dumps(drain(int(sys.argv[1]))))
