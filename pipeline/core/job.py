"""A job as it travels: identity, tenant and delivery counters, all in record headers; the payload is only bytes here.

Identity headers follow the CloudEvents 1.0 Kafka binding in binary mode. A job is a named tuple: immutable, and cheap
enough to build for each record.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

__all__ = ["EPOCH_LIMIT", "Job", "Record", "Source", "idempotent_job_id", "new_job_id"]

# Names a namespace of our own for uuid5; invented once, never to change: it makes equal keys give equal ids.
_NAMESPACE = uuid.UUID("6f4c1f0e-53a8-5d0c-9f2b-7a1d2c3b4e5f")

# Times beyond the year 2262 are garbage, not plans.
EPOCH_LIMIT: Final = 9_214_646_400.0


class Source(NamedTuple):
    """Where a record lies in Kafka."""

    topic: str
    partition: int
    offset: int


class Record(NamedTuple):
    """A Kafka record as fetched: bytes untouched."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: float

    @property
    def source(self) -> Source:
        return Source(self.topic, self.partition, self.offset)

    @property
    def size(self) -> int:
        """About how many bytes it holds in memory."""
        return len(self.value or b"") + len(self.key or b"") + 64 * len(self.headers) + 400


class Job(NamedTuple):
    """What the headers of a record say of its job.

    `attempt` counts runs of the handler (the first is 1). `hop` counts how often the job was published onward: retry,
    snooze and replay each write hop + 1. `not_before` and `expires_at` are seconds since the epoch; 0 means none.
    `schema_id` names the payload's schema when its publisher, not one of ours, has put it into a header.
    """

    job_id: str
    job_type: str
    tenant: str
    queue: str
    priority: str = "normal"
    publisher: str = ""
    enqueued_at: float = 0.0
    attempt: int = 1
    hop: int = 0
    not_before: float = 0.0
    expires_at: float = 0.0
    replays: int = 0
    ordering_key: str = ""
    traceparent: str = ""
    schema_id: bytes = b""


def new_job_id(*, now: float, entropy: bytes) -> str:
    """An id for a job without an idempotency key: time-ordered, which keeps the store's index warm.

    A UUIDv7 (RFC 9562, section 5.7) from seconds since the epoch and 10 random bytes. Put together as text: the objects of
    the standard library would be a good part of what publishing a job costs.
    """
    text = f"{int(now * 1000) & 0xFFFFFFFFFFFF:012x}{entropy[:10].hex()}"
    variant = _VARIANT[text[16]]
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}


def idempotent_job_id(*, tenant: str, job_type: str, key: str) -> str:
    """The id that (tenant, job type, idempotency key) always gives: UUIDv5 over the three, length-prefixed."""
    parts = (tenant, job_type, key)
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))


def source_job_id(source: Source) -> str:
    """The id of a record that carries none: the same at every redelivery."""
    return str(uuid.uuid5(_NAMESPACE, f"{source.topic}/{source.partition}/{source.offset}"))
