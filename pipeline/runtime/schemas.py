"""Writer schemas that travel: told by publishers before their first job, found by workers that are older.

Without a registry they are in a compacted topic: key = fingerprint, value = the schema's text, as in git. A publisher waits
until its schema is acknowledged there before it sends the first job of that type, so a worker that meets the job finds it.

Looking one up blocks the thread that claims jobs, so each source is asked sparingly: never again for some seconds after
it was away, not at once again for a schema that it does not have, and only so often altogether, whatever a publisher
gone wrong writes. What was found is kept by the codec: no job pays for a look-up but the first of its version.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from pipeline.core.clock import Clock
from pipeline.core.job import Record
from pipeline.core.ports import JobProducer, Outgoing
from pipeline.core.writer_schemas import FindWriterSchema, WriterRef, WrittenSchema
from pipeline.errors import BrokerUnavailable, PublishFailed, RegistryUnavailable, TopicsMissing

__all__ = ["Announcer", "SchemaFinder", "TopicSchemas", "TopicTail"]

log = logging.getLogger("pipeline.schemas")

JOB_TYPE = "pipeline-job-type"
VERSION = "pipeline-schema-version"

MISSING_SECONDS = 1.0  # until a source is asked again for a schema that it did not have
BURST = 20  # look-ups at once
PER_SECOND = 10.0  # look-ups in the long run
REMEMBERED = 10_000  # names of missing schemas
FAILED_SECONDS = 1.0  # until an announcement that failed is tried again


class Announcer:
    """Writes the schema of a job type to the topic, once in the life of a process. Thread-safe."""

    def __init__(
        self,
        *,
        producer: JobProducer,
        topic: str,
        written: Callable[[str], WrittenSchema],
        clock: Clock,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._written = written
        self._clock = clock
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._failed: dict[str, tuple[PublishFailed, float]] = {}

    def __call__(self, job_type: str) -> None:
        """Return once the schema is in the topic. Raises `PublishFailed`: then no job of the type may be sent."""
        if job_type in self._done:
            return
        with self._lock:
            if job_type not in self._done:
                self._refuse_again(job_type)
                self._announce(job_type)
                self._done.add(job_type)

    def _refuse_again(self, job_type: str) -> None:
        """Thousands of jobs published at once must not each wait for a broker that is away."""
        error, until = self._failed.get(job_type, (None, 0.0))
        if error is not None and self._clock.monotonic() < until:
            raise PublishFailed(str(error))

    def _announce(self, job_type: str) -> None:
        schema = self._written(job_type)
        headers: list[tuple[str, bytes | None]] = [
            (JOB_TYPE, job_type.encode()),
            (VERSION, b"%d" % schema.version),
        ]
        record = Outgoing(self._topic, schema.fingerprint, schema.text.encode(), headers)
        (delivered,) = self._producer.send_all([record])
        if delivered.error is not None:
            error = PublishFailed(
                f"no job of type {job_type!r} was sent, as its schema could not be written before: {delivered.error}"
            )
            self._failed[job_type] = (error, self._clock.monotonic() + FAILED_SECONDS)
            raise error


class TopicTail(Protocol):
    """A topic that is read again and again, from its beginning on."""

    def read_new(self) -> Iterable[Record]:
        """What lies between the last record given and the end as it is now. Raises `BrokerUnavailable`, `TopicsMissing`."""
        ...


class TopicSchemas:
    """The schemas in the topic, by fingerprint. Not thread-safe."""

    def __init__(self, tail: TopicTail) -> None:
        self._tail = tail
        self._texts: dict[bytes, str] = {}

    def find(self, ref: WriterRef) -> str | None:
        """Reads on to the end of the topic when the schema is not known. Raises `BrokerUnavailable`."""
        if ref.value not in self._texts:
            try:
                for record in self._tail.read_new():
                    self._keep(record)
            except TopicsMissing as error:
                log.warning("no schemas are found: %s", error, extra={"action": "schemas_missing"})
        return self._texts.get(ref.value)

    def _keep(self, record: Record) -> None:
        if record.key is None:
            return
        if record.value is None:
            self._texts.pop(record.key, None)
        else:
            self._texts[record.key] = record.value.decode(errors="replace")


class SchemaFinder:
    """Finds writer schemas: by fingerprint in the topic, by id or GUID in the registry, where there is one. Thread-safe."""

    def __init__(
        self,
        *,
        topic: FindWriterSchema | None,
        registry: FindWriterSchema | None,
        clock: Clock,
        retry_after: float,
    ) -> None:
        """A source that was away is not asked for `retry_after` seconds."""
        self._lock = threading.Lock()
        self._topic = None if topic is None else _Source(topic, clock, retry_after)
        self._registry = None if registry is None else _Source(registry, clock, retry_after)

    def __call__(self, ref: WriterRef) -> str | None:
        """See `FindWriterSchema`."""
        source = self._topic if ref.kind == "fingerprint" else self._registry
        if source is None:
            return None
        with self._lock:
            return source.ask(ref)


class _Source:
    """One place to look, asked no more often than the worker can bear."""

    def __init__(self, find: FindWriterSchema, clock: Clock, retry_after: float) -> None:
        self._find = find
        self._clock = clock
        self._retry_after = retry_after
        self._away: BrokerUnavailable | RegistryUnavailable | None = None
        self._away_until = 0.0
        self._missing: dict[WriterRef, float] = {}
        self._left = float(BURST)
        self._counted_at = clock.monotonic()

    def ask(self, ref: WriterRef) -> str | None:
        now = self._clock.monotonic()
        if self._away is not None and now < self._away_until:
            raise type(self._away)(str(self._away))
        if now < self._missing.get(ref, 0.0) or not self._may_ask(now):
            return None
        try:
            text = self._find(ref)
        except (BrokerUnavailable, RegistryUnavailable) as error:
            self._away, self._away_until = error, self._clock.monotonic() + self._retry_after
            log.warning("cannot look up a schema: %s", error, extra={"action": "schema_lookup_failed"})
            raise
        self._away = None
        if text is None:
            self._note_missing(ref)
        return text

    def _may_ask(self, now: float) -> bool:
        self._left = min(BURST, self._left + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _note_missing(self, ref: WriterRef) -> None:
        if len(self._missing) >= REMEMBERED:
            self._missing.clear()
        self._missing[ref] = self._clock.monotonic() + MISSING_SECONDS
