"""Small parts for tests of the runtime: records, deliveries, a trivial codec, recording and failing twins."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.core.claims import Claim, ClaimRequest, Settled, Settlement
from pipeline.core.clock import ManualClock
from pipeline.core.events import Move, Trail
from pipeline.core.headers import job_headers, parse_job
from pipeline.core.job import Job, Record
from pipeline.core.job_type import JobType, Upcaster
from pipeline.core.metrics import NoMetrics
from pipeline.core.offsets import Partition
from pipeline.core.ports import Delivered, JobProducer, JobStore, Outgoing, WorkerInfo
from pipeline.core.writer_schemas import WrittenSchema
from pipeline.errors import InvalidJob, PayloadError, StoreUnavailable, UnknownWriterSchema
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.events import EventSink

T = TypeVar("T")
MAIN, RETRY, DLQ = "jobs.default.normal", "jobs.default.retry.10s", "jobs.default.dlq"
LANES = ("thread", "async")
NOW = 1_800_000_000.0


class Mail(BaseModel):
    to: str
    size: int = 0


MAIL: JobType[Mail] = JobType(name="email.send", model=Mail)


class JsonCodec:
    """A `Codec` for tests of what lies around it. A payload that starts with '?' is of an unknown schema."""

    def __init__(self, *models: tuple[str, type[BaseModel]]) -> None:
        self._models: dict[str, type[BaseModel]] = dict(models or [("email.send", Mail)])

    def register(
        self, job_type: str, model: type[BaseModel], upcasters: Mapping[int, Upcaster] | None = None
    ) -> None:
        del upcasters
        self._models[job_type] = model

    def written(self, job_type: str) -> WrittenSchema:
        return WrittenSchema(job_type, 1, b"12345678", job_type, "{}")

    def encode(self, job_type: str, payload: BaseModel) -> bytes:
        if getattr(payload, "to", "") == "nobody":
            raise InvalidJob(f"{job_type}: field 'to' cannot be written")
        return payload.model_dump_json().encode()

    def decode(self, job_type: str, data: bytes, schema_id: bytes = b"") -> BaseModel:
        del schema_id
        if data.startswith(b"?"):
            raise UnknownWriterSchema(f"{job_type}: unknown schema")
        try:
            return self._models[job_type].model_validate_json(data)
        except ValidationError as error:
            raise PayloadError(f"{job_type}: {error.error_count()} faults") from None

    def describe(self, job_type: str, data: bytes, schema_id: bytes = b"") -> dict[str, object]:
        return {"payload": self.decode(job_type, data, schema_id).model_dump()}


def new_job(**values: Any) -> Job:
    identity = {"job_id": str(uuid.uuid4()), "job_type": "email.send", "tenant": "acme", "queue": "default"}
    return Job(**{**identity, "enqueued_at": NOW, **values})


def record_of(
    job: Job, *, topic: str = MAIN, partition: int = 0, offset: int = 0, value: bytes = b'{"to": "ann"}'
) -> Record:
    headers = job_headers(job, ce_time="2027-01-15T08:00:00+00:00")
    return Record(topic, partition, offset, job.tenant.encode(), value, headers, NOW)


def delivery_of(record: Record) -> Delivery:
    parsed = parse_job(record, queue="default")
    return Delivery(record, Partition(record.topic, record.partition), parsed.job, parsed.problem)


class WatchedBuffer(Buffer):
    """One that does something else in place of waiting for what runs, when told so."""

    while_waiting: Callable[[Sequence[Partition], float], bool] | None = None

    def wait_landed(self, partitions: Sequence[Partition], timeout: float) -> bool:
        wait = self.while_waiting or super().wait_landed
        return wait(partitions, timeout)


def new_buffer(*partitions: Partition) -> WatchedBuffer:
    """A buffer with these partitions assigned; jobs of the type `async.*` go to the asyncio lane."""
    buffer = WatchedBuffer(
        BufferSettings(
            lanes=LANES,
            lane_of=lambda job_type: LANES[job_type.startswith("async.")],
            is_retry=lambda topic: ".retry." in topic,
        )
    )
    buffer.assign(partitions or (Partition(MAIN, 0),))
    return buffer


def eventually(condition: Callable[[], object], *, timeout: float = 30.0) -> None:
    """Wait until the condition holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.001)


class Journal:
    """What happened, in order, as seen by the twins that write into it."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def add(self, what: str, detail: Any = None) -> None:
        self.entries.append((what, detail))

    def names(self) -> list[str]:
        return [what for what, _ in self.entries]

    def details(self, what: str) -> list[Any]:
        return [detail for name, detail in self.entries if name == what]


class ShakyStore:
    """A store around another that fails when told to: `before` or `after` the call took effect."""

    def __init__(self, inner: JobStore, journal: Journal | None = None) -> None:
        self._inner = inner
        self.journal = journal or Journal()
        self.failing: dict[str, str] = {}  # name of the call -> before or after; once

    def heartbeat(self, worker: WorkerInfo) -> float:
        return self._call("heartbeat", worker, lambda: self._inner.heartbeat(worker))

    def leave(self, worker_id: str) -> None:
        return self._call("leave", worker_id, lambda: self._inner.leave(worker_id))

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        return self._call("claim", list(requests), lambda: self._inner.claim(worker_id, requests))

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        return self._call("settle", list(settlements), lambda: self._inner.settle(worker_id, settlements))

    def close(self) -> None:
        self._inner.close()

    def _call(self, name: str, detail: Any, call: Callable[[], T]) -> T:
        when = self.failing.pop(name, "")
        if when == "before":
            raise StoreUnavailable(f"{name}: away")
        self.journal.add(name, detail)
        answer = call()
        if when == "after":
            raise StoreUnavailable(f"{name}: the answer was lost")
        return answer


class NotingProducer:
    """A producer around another that notes the topics it writes to."""

    def __init__(self, inner: JobProducer, journal: Journal) -> None:
        self._inner = inner
        self._journal = journal

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        self._journal.add("send", record.topic)
        self._inner.send(record, on_delivery)

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        if records:
            self._journal.add("send_all", [record.topic for record in records])
        return self._inner.send_all(records)

    def flush(self, timeout: float) -> int:
        return self._inner.flush(timeout)

    def close(self) -> None:
        self._inner.close()


class Counts(NoMetrics):
    """Counts by name, and by the outcome where there is one."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def _note(self, name: str) -> Callable[..., None]:
        def count(_job_type: str, _queue: str, n: int | Sequence[float] = 1, *, outcome: str = "") -> None:
            key = f"{name}:{outcome}" if outcome else name
            self.seen[key] = self.seen.get(key, 0) + (n if isinstance(n, int) else len(n))

        return count

    def __getattribute__(self, name: str) -> Any:
        if name in ("seen", "_note") or name.startswith(("__", "set_")):
            return super().__getattribute__(name)
        return self._note(name)


class NoEvents(EventSink):
    """Keeps the moves instead of sending them."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.moves: list[Move] = []
        self._journal = journal or Journal()

    def claimed(self, trails: Iterable[Trail]) -> None:
        self.moves.extend(move for trail in trails for move in trail.moves())

    def settled(self, trails: Iterable[Trail]) -> None:
        told = [move for trail in trails for move in trail.moves()]
        self._journal.add("events", len(told))
        self.moves.extend(told)

    def flush(self) -> None:
        self._journal.add("flush")


def trail_of(*moves: Move) -> Trail:
    """Moves of one job under one claim, as they travel."""
    first = moves[0]
    job = Job(first.job_id, first.job_type, first.tenant, first.queue, attempt=first.attempt, hop=first.hop)
    return Trail(job, first.worker, first.token, [move[8:] for move in moves])


def clock_at(now: float = NOW) -> ManualClock:
    return ManualClock(now)
