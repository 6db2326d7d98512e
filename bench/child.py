"""What a benchmark measures runs in a process of its own: `python -m bench.child KIND JSON`. Prints figures as JSON."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import psycopg
from confluent_kafka import Consumer, Message
from fastavro import parse_schema, schemaless_reader

from bench.jobs import app, plain_app, plain_render, render, requests
from bench.place import run_worker
from pipeline import load_settings
from pipeline.adapters.avro.framing import HEADER_SIZE
from pipeline.demo.jobs import RenderInvoice

BATCH = 1000
WARM_UP = 500  # jobs before those that count


class Meter:
    """Counts handled jobs. Time and CPU run from the first job to the last."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._count = 0
        self._first = self._last = 0.0
        self._cpu_first = self._cpu_last = 0.0
        self.done = threading.Event()

    def add(self, count: int) -> None:
        if not self._count:
            self._first, self._cpu_first = time.perf_counter(), time.process_time()
        self._count += count
        if self._count >= self._total:
            self.stop()

    def stop(self) -> None:
        if not self._last:
            self._last, self._cpu_last = time.perf_counter(), time.process_time()
            self.done.set()

    def figures(self) -> dict[str, float]:
        seconds = self._last - self._first
        return {
            "jobs_per_s": self._count / seconds,
            "cpu_us_per_job": (self._cpu_last - self._cpu_first) / self._count * 1e6,
            "jobs": self._count,
        }


def publish(count: int) -> dict[str, float]:
    """Enqueue as fast as one producer can."""
    prepared = list(requests(count))
    with app.publisher() as publisher:
        publisher.publish_many(prepared[:1])
        started, cpu = time.perf_counter(), time.process_time()
        result = publisher.publish_many(prepared)
        seconds = time.perf_counter() - started
    assert len(result.job_ids) == count, result.refused[:3]
    return {"jobs_per_s": count / seconds, "cpu_us_per_job": (time.process_time() - cpu) / count * 1e6}


def bare(
    count: int, *, decode: bool = False, look_up: bool = False, insert: bool = False
) -> dict[str, float]:
    """A loop that consumes, and does what else is asked for, a batch at a time; offsets committed at its end.

    As one would write it by hand: nothing of ours runs in it.
    """
    settings = load_settings()
    topic = app.names.main("default")
    consumer = Consumer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "group.id": f"bare{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    schema = parse_schema(json.loads(app.codec().written("invoice.render").text))
    table = f'"{settings.namespace}".done{time.time_ns()}'
    meter = Meter(count)
    with psycopg.connect(settings.postgres.dsn.get_secret_value(), autocommit=True) as database:
        database.execute(
            f"create table {table} (job_id uuid primary key, tenant text, at timestamptz default now())"
        )
        seen = 0
        while seen < count:
            messages = consumer.consume(BATCH, timeout=0.005)
            if not messages:
                continue
            if not seen:
                meter.add(0)
            ids = [_job_id(message) for message in messages]
            if look_up:
                database.execute(
                    f"select job_id from {table} where job_id = any(%s::uuid[])", (ids,)
                ).fetchall()
            if decode:
                for message in messages:
                    frameless = BytesIO((message.value() or b"")[HEADER_SIZE:])
                    RenderInvoice.model_validate(schemaless_reader(frameless, schema, None))
            if insert:
                tenants = [(m.key() or b"").decode() for m in messages]
                database.execute(
                    f"insert into {table} (job_id, tenant) select * from unnest(%s::uuid[], %s::text[]) "
                    "on conflict do nothing",
                    (ids, tenants),
                )
            consumer.commit(asynchronous=False)
            seen += len(messages)
            meter.add(len(messages))
    consumer.close()
    return meter.figures()


def _job_id(message: Message) -> str:
    value = dict(message.headers() or ())["ce_id"]
    assert isinstance(value, bytes)
    return value.decode()


def work(count: int, *, handler: str = "noop", store: bool = True, **settings: str) -> dict[str, float]:
    """One worker of ours, until it has handled `count` jobs; peak memory in MB beside the figures of the meter."""
    meter = Meter(count)
    ours, job_type = (app, render) if store else (plain_app, plain_render)
    ours.configure(load_settings(settings))
    if handler == "batch":
        ours.batch_handler(job_type, size=500)(_batch(meter))
    else:
        ours.handler(job_type)(_handlers(meter)[handler])
    worker = ours.worker()

    def stop_when_done() -> None:
        meter.done.wait()
        worker.stop()

    threading.Thread(target=stop_when_done, daemon=True).start()
    run_worker(worker)
    return {**meter.figures(), "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _batch(meter: Meter) -> Callable[..., None]:
    lock = threading.Lock()

    def noop(jobs: Sequence[RenderInvoice]) -> None:
        with lock:
            meter.add(len(jobs))

    return noop


def _handlers(meter: Meter) -> dict[str, Callable[..., Any]]:
    lock = threading.Lock()

    def noop(_job: RenderInvoice) -> None:
        with lock:
            meter.add(1)

    def sleep(_job: RenderInvoice) -> None:
        time.sleep(0.01)
        with lock:
            meter.add(1)

    async def wait(_job: RenderInvoice) -> None:
        await asyncio.sleep(0.01)
        meter.add(1)

    return {"noop": noop, "thread_10ms": sleep, "async_10ms": wait}


def light(seconds: float, *, per_s: float) -> dict[str, float]:
    """A warm worker under a light load: from the call of `publish` to the start of the handler, in milliseconds."""
    waits: list[float] = []

    @app.handler(render)
    def start(job: RenderInvoice) -> None:
        waits.append((time.perf_counter_ns() - int(job.labels["at"])) / 1e6)

    worker = app.worker()
    total = int(seconds * per_s)

    def handled(count: int) -> None:
        while len(waits) < count:
            time.sleep(0.01)

    def publish_all() -> None:
        with app.publisher() as publisher:
            for number, request in enumerate(requests(total + WARM_UP)):
                if number == WARM_UP:
                    handled(WARM_UP)  # not before has the worker its partitions
                    waits.clear()
                payload = request.payload.model_copy(update={"labels": {"at": str(time.perf_counter_ns())}})  # type: ignore[union-attr]
                publisher.publish_async(render, payload, tenant=request.tenant)
                time.sleep(1 / per_s)
        handled(total)
        worker.stop()

    threading.Thread(target=publish_all, daemon=True).start()
    run_worker(worker)
    ordered = sorted(waits)
    return {"p50_ms": ordered[len(ordered) // 2], "p99_ms": ordered[int(len(ordered) * 0.99)]}


KINDS: dict[str, Callable[..., dict[str, float]]] = {
    "publish": publish,
    "bare": bare,
    "work": work,
    "light": light,
}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](**json.loads(sys.argv[2]))))
