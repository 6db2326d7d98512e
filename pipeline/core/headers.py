"""Record headers <-> `Job`. Names, bounds, and what a record with bad headers becomes.

A record whose headers cannot be trusted is never skipped and never run: `parse_job` gives a job with a stable id and
says what is wrong, and the worker sends it to the dead letters with its bytes untouched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple, TypeVar

from pipeline.core.job import EPOCH_LIMIT, Job, Record, source_job_id
from pipeline.core.quick import new_tuple

__all__ = ["Parsed", "due_text", "forward_headers", "job_headers", "parse_job", "text_problem"]

SPECVERSION: Final = "ce_specversion"
ID: Final = "ce_id"
TYPE: Final = "ce_type"
SOURCE: Final = "ce_source"
TIME: Final = "ce_time"
CONTENT_TYPE: Final = "content-type"
TENANT: Final = "pipeline-tenant"
PRIORITY: Final = "pipeline-priority"
ORDERING_KEY: Final = "pipeline-ordering-key"
TRACEPARENT: Final = "traceparent"
ATTEMPT: Final = "pipeline-attempt"
HOP: Final = "pipeline-hop"
NOT_BEFORE: Final = "pipeline-not-before"
EXPIRES: Final = "pipeline-expires"
REPLAYS: Final = "pipeline-replays"
REASON: Final = "pipeline-reason"
FIRST: Final = "pipeline-first-"
LAST: Final = "pipeline-last-"
SCHEMA_ID: Final = "__value_schema_id"  # as clients of schema registries call it

MAX_TEXT: Final = 256
MAX_COUNT: Final = 1_000_000
MAX_HOP: Final = 999_999_999  # a job that is put off every second takes 30 years to get there
# Stands for a hop that cannot be read. Above any real one, or the record would be dropped as an older copy of its job and
# never reach the dead letters; below the highest allowed, so that its letter can be replayed.
UNREADABLE_HOP: Final = MAX_HOP // 2
_MOST_ASIDE: Final = 4 * MAX_TEXT  # bytes
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

T = TypeVar("T")
HeaderList = list[tuple[str, bytes | None]]


class Parsed(NamedTuple):
    """A job, and why its record must not run (empty when it may)."""

    job: Job
    problem: str


def text_problem(value: str, *, limit: int = MAX_TEXT) -> str:
    """Say what is wrong with a tenant, key or type; the empty string when nothing is."""
    if not value:
        return "is empty"
    if len(value) > limit:
        return f"has {len(value)} characters; allowed: at most {limit}"
    if _CONTROL.search(value):
        return "has control characters"
    return ""


def due_text(due_at: float) -> str:
    """A time before which a job must not run, rounded up: a fraction of a millisecond early is early, too."""
    return f"{ceil(due_at * 1000) / 1000:.3f}"


def job_headers(job: Job, *, ce_time: str) -> HeaderList:
    """The headers of a job's first record. Absent values have no header."""
    headers: HeaderList = [
        *_same_headers(job.job_type, job.publisher, job.tenant, job.attempt, job.hop),
        (ID, job.job_id.encode()),
        (TIME, ce_time.encode()),
    ]
    if job.priority != "normal":
        headers.append((PRIORITY, job.priority.encode()))
    if job.ordering_key:
        headers.append((ORDERING_KEY, job.ordering_key.encode()))
    if job.traceparent:
        headers.append((TRACEPARENT, job.traceparent.encode()))
    if job.not_before:
        headers.append((NOT_BEFORE, due_text(job.not_before).encode()))
    if job.expires_at:
        headers.append((EXPIRES, f"{job.expires_at:.3f}".encode()))
    if job.schema_id:
        headers.append((SCHEMA_ID, job.schema_id))
    return headers


@lru_cache(maxsize=8192)
def _same_headers(
    job_type: str, publisher: str, tenant: str, attempt: int, hop: int
) -> tuple[tuple[str, bytes], ...]:
    """The headers that job after job has alike."""
    return (
        (SPECVERSION, b"1.0"),
        (TYPE, job_type.encode()),
        (SOURCE, publisher.encode()),
        (CONTENT_TYPE, b"application/avro"),
        (TENANT, tenant.encode()),
        (ATTEMPT, b"%d" % attempt),
        (HOP, b"%d" % hop),
    )


def forward_headers(
    record: Record,
    changes: Mapping[str, bytes | None],
    *,
    gone: Container[str] = (),
    drop: tuple[str, ...] = (),
) -> HeaderList:
    """The headers of the next record of a job: those of `record`, with `changes` in their place.

    A change to None removes the header. So does `gone`, by its names, and `drop` removes every header that starts with one of its
    prefixes.
    """
    kept = [
        each
        for each in record.headers
        if each[0] not in gone and each[0] not in changes and not each[0].startswith(drop)
    ]
    kept += [each for each in changes.items() if each[1] is not None]
    return kept


def parse_job(record: Record, *, queue: str) -> Parsed:
    """Read a record's headers. Never raises; a problem names the header, its value and what is allowed."""
    try:
        return new_tuple(Parsed, (_parse(record, queue), ""))
    except _BadHeaderError as error:
        return Parsed(_fallback(record, queue), str(error))


class _BadHeaderError(ValueError):
    pass


def _parse(record: Record, queue: str) -> Job:
    # Built at full speed for each record: one dict, and each optional header costs one look-up.
    given = record.headers
    headers = dict(given)
    if len(headers) != len(given):
        _refuse_doubles(given)
    job_id = _job_id(headers.get(ID))
    source = headers.get(SOURCE)  # remembered below, so not when it is large: it may be a megabyte
    job_type, tenant, priority, publisher, attempt, hop = _alike(
        headers.get(TYPE),
        headers.get(TENANT),
        headers.get(PRIORITY),
        source if source and len(source) <= _MOST_ASIDE else b"",
        headers.get(ATTEMPT),
        headers.get(HOP),
    )
    not_before, expires, replays = headers.get(NOT_BEFORE), headers.get(EXPIRES), headers.get(REPLAYS)
    ordering, traceparent = headers.get(ORDERING_KEY), headers.get(TRACEPARENT)
    return new_tuple(
        Job,
        (
            job_id,
            job_type,
            tenant,
            queue,
            priority,
            publisher,
            _enqueued(headers.get(TIME), record.timestamp),
            attempt,
            hop,
            _seconds(NOT_BEFORE, not_before) if not_before else 0.0,
            _seconds(EXPIRES, expires) if expires else 0.0,
            _count(REPLAYS, replays, 0) if replays else 0,
            _text(ORDERING_KEY, ordering) if ordering else "",
            _aside(traceparent) if traceparent else "",
            headers.get(SCHEMA_ID) or b"",
        ),
    )


@lru_cache(maxsize=8192)
def _alike(
    job_type: bytes | None,
    tenant: bytes | None,
    priority: bytes | None,
    source: bytes,
    attempt: bytes | None,
    hop: bytes | None,
) -> tuple[str, str, str, str, int, int]:
    """What record after record has alike, read once. Errors are not remembered, so nothing that is too long is, either."""
    return (
        _text(TYPE, job_type),
        _text(TENANT, tenant),
        _text(PRIORITY, priority) if priority else "normal",
        _aside(source),
        _count(ATTEMPT, attempt, 1),
        _count(HOP, hop, 0, MAX_HOP),
    )


# What a job cannot run without. Libraries that trace a service add a traceparent to each record they see written, so
# that one may well be there twice.
_NEEDED = frozenset(
    {ID, TYPE, TENANT, ATTEMPT, HOP, NOT_BEFORE, EXPIRES, REPLAYS, PRIORITY, ORDERING_KEY, SCHEMA_ID}
)


def _refuse_doubles(headers: HeaderList) -> None:
    times = _given(headers)
    twice = sorted(name for name, count in times.items() if count > 1 and name in _NEEDED)
    if twice:
        raise _BadHeaderError(f"header {twice[0]} is given {times[twice[0]]} times; allowed: once")


def _given(headers: HeaderList) -> Counter[str]:
    return Counter(name for name, _ in headers)


def _text(name: str, raw: bytes | None) -> str:
    if raw is None:
        raise _BadHeaderError(f"header {name} is missing")
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        raise _BadHeaderError(f"header {name} is {raw[:80]!r}; allowed: UTF-8 text") from None
    problem = (
        "" if value.isascii() and value.isprintable() and 0 < len(value) <= MAX_TEXT else text_problem(value)
    )
    if problem:
        raise _BadHeaderError(f"header {name} {problem}")
    return value


def _aside(raw: bytes) -> str:
    """Text that a job can run without: when it cannot be read it is left out."""
    try:
        return _text("", raw)
    except _BadHeaderError:
        return ""


def _job_id(raw: bytes | None) -> str:
    if raw is not None and _CANONICAL_UUID.fullmatch(raw):
        return raw.decode()
    value = _text(ID, raw).lower()
    if not _UUID.fullmatch(value):
        raise _BadHeaderError(f"header {ID} is {value[:80]!r}; allowed: a UUID")
    return value


_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CANONICAL_UUID: Final = re.compile(_UUID.pattern.encode())


def _count(name: str, raw: bytes | None, least: int, most: int = MAX_COUNT) -> int:
    if raw is None:
        return least
    if raw.isdigit() and len(raw) <= 9:
        value = int(raw)
        if least <= value <= most:
            return value
    raise _BadHeaderError(f"header {name} is {raw[:80]!r}; allowed: a whole number from {least} to {most}")


def _seconds(name: str, raw: bytes) -> float:
    try:
        value = float(raw)
    except ValueError:
        value = -1.0
    if 0.0 <= value <= EPOCH_LIMIT:  # false for NaN too
        return value
    raise _BadHeaderError(
        f"header {name} is {raw[:80]!r}; allowed: seconds since 1970, up to {EPOCH_LIMIT:.0f}"
    )


def _enqueued(raw: bytes | None, fallback: float) -> float:
    """When the job was enqueued. An unreadable time is no reason to refuse a job: the broker's timestamp serves."""
    if raw is None:
        return fallback
    try:
        moment = datetime.fromisoformat(raw.decode())
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return fallback
    return seconds if 0.0 <= seconds <= EPOCH_LIMIT else fallback


def _fallback(record: Record, queue: str) -> Job:
    """A job for a record that cannot run: a usable id where there is one, counters that keep it going onward.

    What is given twice is no value at all: the wrong one of two ids could pass for a job that completed.
    """
    times = _given(record.headers)
    headers = {name: value if times[name] == 1 else b"" for name, value in record.headers}
    return Job(
        job_id=_or(lambda: _job_id(headers.get(ID)), source_job_id(record.source)),
        job_type=_or(lambda: _text(TYPE, headers.get(TYPE)), "unknown"),
        tenant=_or(lambda: _text(TENANT, headers.get(TENANT)), "unknown"),
        queue=queue,
        enqueued_at=record.timestamp,
        attempt=_or(lambda: _count(ATTEMPT, headers.get(ATTEMPT), 1), 1),
        hop=_or(lambda: _count(HOP, headers.get(HOP), 0, MAX_HOP), UNREADABLE_HOP),
        replays=_or(lambda: _count(REPLAYS, headers.get(REPLAYS), 0), 0),
    )


def _or(read: Callable[[], T], fallback: T) -> T:
    try:
        return read()
    except _BadHeaderError:
        return fallback
