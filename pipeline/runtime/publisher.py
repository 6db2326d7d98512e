"""Publishing: validate -> encode -> produce -> wait for the broker's acknowledgement. Needs only Kafka."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ValidationError

from pipeline.core.clock import Clock
from pipeline.core.headers import job_headers, text_problem
from pipeline.core.job import Job, idempotent_job_id, new_job_id
from pipeline.core.job_type import JobType
from pipeline.core.metrics import Metrics
from pipeline.core.outcome import shorten
from pipeline.core.ports import Codec, Delivered, JobProducer, Outgoing
from pipeline.core.topics import TopicNames
from pipeline.errors import InvalidJob, PipelineError, PublishUnknown, UnknownJobType, UnknownQueue
from pipeline.runtime.handlers import Registry

__all__ = ["BulkResult", "JobRequest", "Published", "Publisher", "Refused"]

MAX_KEY = 512


class Published(NamedTuple):
    """A job that is in the log: acknowledged by all in-sync replicas."""

    job_id: str
    topic: str
    partition: int
    offset: int


class JobRequest(NamedTuple):
    """A job to publish, for `publish_many`."""

    job_type: JobType[Any] | str
    payload: BaseModel | Mapping[str, Any]
    tenant: str
    idempotency_key: str | None = None
    ordering_key: str | None = None


class Refused(NamedTuple):
    """A job of a `publish_many` that is not in the log, or not surely: its place in the input, and why."""

    position: int
    request: JobRequest
    error: PipelineError


class BulkResult(NamedTuple):
    """The end of a `publish_many`: ids of the published jobs in input order, and what was refused."""

    job_ids: list[str]
    refused: list[Refused]


class Publisher:
    """Thread-safe. Use it as a context manager, or `close` it: what was handed over is flushed then."""

    def __init__(
        self,
        *,
        registry: Registry,
        producer: JobProducer,
        codec: Codec,
        names: TopicNames,
        queues: Iterable[str],
        source: str,
        clock: Clock,
        metrics: Metrics,
        timeout: float,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """`announce` is called with the job type before each job of it is sent; what it raises refuses the job."""
        self._registry = registry
        self._producer = producer
        self._codec = codec
        self._names = names
        self._queues = frozenset(queues)
        self._source = shorten(source, 200)  # it may be the name of a script, which can be anything
        self._clock = clock
        self._metrics = metrics
        self._timeout = timeout
        self._announce = announce

    def publish(
        self,
        job_type: JobType[Any] | str,
        payload: BaseModel | Mapping[str, Any],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
    ) -> Published:
        """Publish a job and return once it is in the log.

        With an idempotency key the job id follows from (tenant, job type, key), and publishing again has no effect.
        Raises `InvalidJob` (nothing was sent), `PublishFailed`, or `PublishUnknown` when no answer came in time.
        """
        future = self.publish_async(
            job_type, payload, tenant=tenant, idempotency_key=idempotency_key, ordering_key=ordering_key
        )
        try:
            return future.result(self._timeout)
        except FutureTimeoutError:
            raise PublishUnknown(
                f"no acknowledgement within {self._timeout:g} s; the job may still arrive. "
                "Publishing it again with the same idempotency key is safe"
            ) from None

    def publish_async(
        self,
        job_type: JobType[Any] | str,
        payload: BaseModel | Mapping[str, Any],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
    ) -> Future[Published]:
        """Hand a job over. Wrong input raises at once; the future gives what `publish` gives.

        The first job of each type in a process waits until its schema is in the log, without a schema registry.

        In asyncio: `await asyncio.wrap_future(publisher.publish_async(...))`.
        """
        request = JobRequest(job_type, payload, tenant, idempotency_key, ordering_key)
        job, record = self._prepare(request)
        future: Future[Published] = Future()
        future.set_running_or_notify_cancel()  # it can no longer be called back

        def ended(delivered: Delivered) -> None:
            if delivered.source is None:
                future.set_exception(delivered.error or PublishUnknown("the write ended without an answer"))
            else:
                self._metrics.enqueued(job.job_type, job.queue, 1)
                future.set_result(Published(job.job_id, *delivered.source))

        self._producer.send(record, ended)
        return future

    def publish_many(self, requests: Iterable[JobRequest]) -> BulkResult:
        """Publish at full speed and wait for all. Never raises for a single job: each failure is in the result."""
        bulk = _Bulk(self._metrics)
        for index, request in enumerate(requests):
            try:
                _check_request(request)
                job, record = self._prepare(request)
                self._producer.send(record, bulk.expect(index, request, job))
            except PipelineError as error:
                bulk.refuse(index, request, error)
        self._producer.flush(self._timeout)
        return bulk.result(self._timeout)

    def close(self) -> None:
        """Wait for what was handed over, then let go of the connection."""
        self._producer.flush(self._timeout)
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- from a request to a record

    def _prepare(self, request: JobRequest) -> tuple[Job, Outgoing]:
        job_type = self._job_type(request.job_type)
        _check_text("tenant", request.tenant)
        for name, value in (
            ("idempotency_key", request.idempotency_key),
            ("ordering_key", request.ordering_key),
        ):
            if value is not None:
                _check_text(name, value, limit=MAX_KEY if name == "idempotency_key" else 256)
        data = self._codec.encode(job_type.name, _validated(job_type, request.payload))
        if self._announce is not None:
            self._announce(job_type.name)
        now = self._clock.time()
        job = Job(
            job_id=self._job_id(job_type.name, request, now),
            job_type=job_type.name,
            tenant=request.tenant,
            queue=job_type.queue,
            publisher=self._source,
            enqueued_at=now,
            ordering_key=request.ordering_key or "",
        )
        headers = job_headers(job, ce_time=datetime.fromtimestamp(now, UTC).isoformat())
        return job, Outgoing(self._names.main(job.queue), job.tenant.encode(), data, headers)

    def _job_type(self, given: JobType[Any] | str) -> JobType[Any]:
        if not isinstance(given, str | JobType):
            raise InvalidJob(f"job type is a {type(given).__name__}; allowed: a JobType, or its name")
        job_type = self._registry.job_type(given if isinstance(given, str) else given.name)
        if job_type is not given and isinstance(given, JobType) and job_type != given:
            raise UnknownJobType(
                f"job type {given.name!r} is another one than the one declared under that name, "
                f"with {given.model} instead of {job_type.model}"
            )
        if job_type.queue not in self._queues:
            raise UnknownQueue(
                f"queue of job type {job_type.name!r} is {job_type.queue!r}; "
                f"allowed by the setting queues: {', '.join(sorted(self._queues))}"
            )
        return job_type

    @staticmethod
    def _job_id(job_type: str, request: JobRequest, now: float) -> str:
        if request.idempotency_key is not None:
            return idempotent_job_id(tenant=request.tenant, job_type=job_type, key=request.idempotency_key)
        return new_job_id(now=now, entropy=_entropy.take())


class _Entropy:
    """Ten random bytes at a time, from a larger read: a system call for each job costs more than its headers."""

    SIZE = 10

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()  # append and popleft are atomic: no lock

    def forget(self) -> None:
        self._pieces.clear()

    def take(self) -> bytes:
        try:
            return self._pieces.popleft()
        except IndexError:
            pool = os.urandom(400 * self.SIZE)
            self._pieces.extend(pool[at : at + self.SIZE] for at in range(self.SIZE, len(pool), self.SIZE))
            return pool[: self.SIZE]


_entropy = _Entropy()
os.register_at_fork(after_in_child=_entropy.forget)  # or a forked service would give out its parent's ids


class _Bulk:
    """Collects the ends of a `publish_many`; callbacks come from the producer's thread, also when nobody waits any more."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._expected: dict[int, JobRequest] = {}
        self._done: dict[int, str] = {}
        self._refused: list[Refused] = []

    def expect(self, index: int, request: JobRequest, job: Job) -> Callable[[Delivered], None]:
        self._expected[index] = request

        def ended(delivered: Delivered) -> None:
            if delivered.source is not None:
                self._metrics.enqueued(job.job_type, job.queue, 1)
                with self._lock:
                    self._done[index] = job.job_id
                    self._expected.pop(index, None)
            else:
                error = delivered.error
                known = error if isinstance(error, PipelineError) else PublishUnknown(str(error))
                self.refuse(index, request, known)

        return ended

    def refuse(self, index: int, request: JobRequest, error: PipelineError) -> None:
        with self._lock:
            self._expected.pop(index, None)
            self._refused.append(Refused(index, request, error))

    def result(self, timeout: float) -> BulkResult:
        with self._lock:
            unknown = [
                Refused(index, request, PublishUnknown(f"no acknowledgement within {timeout:g} s"))
                for index, request in self._expected.items()
            ]
            job_ids = [self._done[index] for index in sorted(self._done)]
            refused = sorted(self._refused + unknown, key=lambda refused: refused.position)
        return BulkResult(job_ids, refused)


def _check_request(request: object) -> None:
    if not isinstance(request, JobRequest):
        raise InvalidJob(f"request is a {type(request).__name__}; allowed: JobRequest")


def _validated(job_type: JobType[Any], payload: BaseModel | Mapping[str, Any]) -> BaseModel:
    model: type[BaseModel] = job_type.model
    if isinstance(payload, model):
        return payload
    if isinstance(payload, BaseModel):
        raise InvalidJob(
            f"payload of job type {job_type.name!r} is a {type(payload).__name__}; allowed: {model.__name__}"
        )
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        faults = "; ".join(_fault(fault) for fault in error.errors(include_url=False, include_input=False))
        raise InvalidJob(f"payload of job type {job_type.name!r}: {faults}") from None
    except Exception as error:
        raise InvalidJob(
            f"payload of job type {job_type.name!r}: its validator raised {type(error).__name__}"
        ) from error


def _fault(fault: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "payload"
    return f"{where}: {fault['msg']}"


def _check_text(name: str, value: object, *, limit: int = 256) -> None:
    if not isinstance(value, str):
        raise InvalidJob(f"{name} is a {type(value).__name__}; allowed: text")
    if problem := text_problem(value, limit=limit):
        raise InvalidJob(
            f"{name} {problem}; allowed: 1 to {limit} characters, none of them control characters"
        )
