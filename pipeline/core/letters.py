"""What a dead letter says, which letters a selection means, and whether one may still be replayed.

A letter is read as it is: whatever its headers hold, reading never raises. Its job died at the letter's hop, and a
replay is a record of the next hop, so two replays of one letter are two records of the same hop, of which the claim
rule lets one run. `standing` only spares the records that would run in vain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pipeline.core import headers as h
from pipeline.core.claims import Row
from pipeline.core.job import EPOCH_LIMIT, Job, Record
from pipeline.core.state import JobState
from pipeline.errors import PipelineError

__all__ = [
    "BadReference",
    "Letter",
    "Position",
    "Selection",
    "Standing",
    "Trouble",
    "parse_reference",
    "read_letter",
    "standing",
]

_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_POSITION = re.compile(r"(\d{1,9}):(\d{1,18})", re.ASCII)


class BadReference(PipelineError):
    """Text that names no letter. The message has the text and what is allowed."""


class Position(NamedTuple):
    """Where a letter lies in the DLQ topic of its queue."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class Trouble(NamedTuple):
    """An error on the way to the DLQ: what was raised, and the record that was being worked on.

    Numbers that the letter does not tell are -1, times 0, texts empty.
    """

    error_class: str
    message: str
    stack: str
    topic: str
    partition: int
    offset: int
    timestamp: float
    group: str
    at: float


class Letter(NamedTuple):
    """A record of a DLQ topic. `problem` says why its headers cannot be trusted; it is empty when they can."""

    record: Record
    job: Job
    problem: str
    reason: str
    last: Trouble

    @property
    def first(self) -> Trouble:
        """The first error that the job met; read on demand, as only people ask for it."""
        return _trouble(dict(self.record.headers), h.FIRST)

    @property
    def position(self) -> Position:
        return Position(self.record.partition, self.record.offset)

    @property
    def dead_at(self) -> float:
        """When the job died: what the worker wrote, else the record's own timestamp."""
        return self.last.at or self.record.timestamp


def read_letter(record: Record, *, queue: str) -> Letter:
    """Read a record of the DLQ topic of `queue`. Never raises."""
    job, problem = h.parse_job(record, queue=queue)
    headers = dict(record.headers)
    return Letter(record, job, problem, _text(headers, h.REASON), _trouble(headers, h.LAST))


def _trouble(headers: dict[str, bytes | None], prefix: str) -> Trouble:
    return Trouble(
        error_class=_text(headers, f"{prefix}error-class"),
        message=_text(headers, f"{prefix}error-message"),
        stack=_text(headers, f"{prefix}error-stack"),
        topic=_text(headers, f"{prefix}topic"),
        partition=_number(headers, f"{prefix}partition"),
        offset=_number(headers, f"{prefix}offset"),
        timestamp=_time(headers, f"{prefix}timestamp"),
        group=_text(headers, f"{prefix}group"),
        at=_time(headers, f"{prefix}at"),
    )


def _text(headers: dict[str, bytes | None], name: str) -> str:
    return (headers.get(name) or b"").decode("utf-8", "backslashreplace")


def _number(headers: dict[str, bytes | None], name: str) -> int:
    raw = headers.get(name) or b""
    return int(raw) if raw.isdigit() and len(raw) <= 18 else -1


def _time(headers: dict[str, bytes | None], name: str) -> float:
    try:
        value = float(headers.get(name) or b"0")
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= EPOCH_LIMIT else 0.0  # NaN is neither


def parse_reference(text: str) -> str | Position:
    """What names letters: a job id, or PARTITION:OFFSET. Raises `BadReference`."""
    if _JOB_ID.fullmatch(text):
        return text.lower()
    found = _POSITION.fullmatch(text)
    if found is None:
        raise BadReference(
            f"{text[:80]!r} names no letter; allowed: a job id (UUID), or PARTITION:OFFSET such as 3:17"
        )
    return Position(int(found[1]), int(found[2]))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which letters are meant: those that fit every criterion given; an empty one fits all.

    Within a criterion any value will do. `references` are job ids and positions.
    """

    references: frozenset[str | Position] = frozenset()
    job_types: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether there is any criterion."""
        return bool(self.references or self.job_types or self.tenants or self.reasons or self.errors)

    def matches(self, letter: Letter) -> bool:
        """Whether the letter is meant. Errors are classes of the last error, with or without their module."""
        job, error_class = letter.job, letter.last.error_class
        return (
            (not self.references or bool(self.named_by(letter)))
            and (not self.job_types or job.job_type in self.job_types)
            and (not self.tenants or job.tenant in self.tenants)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.errors or not self.errors.isdisjoint((error_class, error_class.rpartition(".")[2])))
        )

    def named_by(self, letter: Letter) -> frozenset[str | Position]:
        """The references that name this letter."""
        return self.references.intersection((letter.job.job_id, letter.position))


class Standing(StrEnum):
    """What has become of a letter's job."""

    OPEN = "open"  # dead since: a replay will run
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REPLAYED = "already replayed"  # the job went on from this letter; it may have died again, with a letter of its own
    UNSETTLED = (
        "not settled yet"  # the letter is written, but its worker has yet to record that the job is dead
    )


def standing(letter: Letter, row: Row | None) -> Standing:
    """Tell from the job's row in the store; a job that the store does not know (any more) is open."""
    if row is None:
        return Standing.OPEN
    if row.state is JobState.COMPLETED:
        return Standing.COMPLETED
    if row.state is JobState.CANCELLED:
        return Standing.CANCELLED
    if row.hop > letter.job.hop:
        return Standing.REPLAYED
    settled = row.state is JobState.DEAD or row.hop < letter.job.hop
    return Standing.OPEN if settled else Standing.UNSETTLED
