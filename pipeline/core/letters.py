"""What a dead letter says, which letters a selection means, and whether one may still be replayed.

A letter is read as it is: whatever its headers hold, reading never raises. Its job died at the letter's hop, and a
replay is a record of the next hop, so two replays of one letter are two records of the same hop, of which the claim
rule lets one run. `standing` only spares the records that would run in vain.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pipeline.core import headers as h
from pipeline.core.claims import Row
from pipeline.core.dialects import Dialect, Trouble, dialect_of, origin_of, trouble_of
from pipeline.core.job import Job, Record, source_job_id
from pipeline.core.letter_facts import LetterFacts, schema_reference
from pipeline.core.outcome import shorten
from pipeline.core.selection import Position, Selection
from pipeline.core.state import JobState

__all__ = ["Letter", "Standing", "facts_of", "matches", "named_by", "read_letter", "standing"]

MAX_MESSAGE = 500
MAX_TEXT = 260
_INT = 2**31 - 1


class Letter(NamedTuple):
    """A record of a DLQ topic. `problem` says why it carries no job of ours; it is empty when it does.

    `origin` is the topic that a letter of another's came from; it is empty for ours, whose main topic follows from its
    queue. Such a letter without a job has an id that is made of the record it stands for.
    """

    record: Record
    job: Job
    problem: str
    reason: str
    dialect: Dialect = Dialect.PIPELINE
    origin: str = ""

    # Read on demand: a replay does not ask, and it would be a third of the reading.
    @property
    def last(self) -> Trouble:
        """The error that the job died of."""
        return trouble_of(dict(self.record.headers), self.dialect)

    @property
    def first(self) -> Trouble:
        """The first error that the job met."""
        return trouble_of(dict(self.record.headers), self.dialect, first=True)

    @property
    def position(self) -> Position:
        return Position(self.record.partition, self.record.offset)

    @property
    def dead_at(self) -> float:
        return _died_at(self.record, self.last)

    @property
    def is_ours(self) -> bool:
        """Whether the claim rule guards it: a job of ours comes with it, or a worker of ours wrote it."""
        return self.dialect is Dialect.PIPELINE or not self.problem


def _died_at(record: Record, last: Trouble) -> float:
    """What the worker wrote, else the record's own timestamp."""
    return last.at or record.timestamp


def read_letter(record: Record, *, queue: str) -> Letter:
    """Read a record of the DLQ topic of `queue`. Never raises."""
    job, problem = h.parse_job(record, queue=queue)
    headers = dict(record.headers)
    dialect = dialect_of(headers)
    if dialect is Dialect.PIPELINE:
        reason = (headers.get(h.REASON) or b"").decode("utf-8", "backslashreplace")
        return Letter(record, job, problem, reason)
    origin = origin_of(record.headers, dialect)
    if problem and origin.topic and origin.offset >= 0:
        job = job._replace(job_id=source_job_id(origin))
    return Letter(record, job, problem, dialect.value, dialect, origin.topic)


# --- for the index


def facts_of(letter: Letter) -> LetterFacts:
    """Never raises."""
    job, record, last = letter.job, letter.record, letter.last
    return LetterFacts(
        job.queue,
        record.partition,
        record.offset,
        job.job_id,
        _bounded(job.job_type),
        _bounded(job.tenant),
        _bounded(job.priority),
        letter.dialect.value,
        _bounded(letter.origin),
        bool(letter.problem),
        job.hop,
        job.attempt,
        job.replays,
        _bounded(letter.reason),
        _bounded(last.error_class),
        _bounded(last.message, MAX_MESSAGE),
        schema_reference(record.value or b"", job.schema_id),
        *_place(letter.first),
        *_place(last),
        len(record.value or b""),
        round(_died_at(record, last), 3),
    )


def _place(trouble: Trouble) -> tuple[str, int, int]:
    partition = trouble.partition if trouble.partition <= _INT else -1
    return _bounded(trouble.topic), partition, min(trouble.offset, 2**63 - 1)


def _bounded(text: str, limit: int = MAX_TEXT) -> str:
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    return shorten(text, limit)


# --- what is meant


def matches(selection: Selection, letter: Letter) -> bool:
    """Whether the letter is meant; of its schema nothing is known here, so a selection by schema fits none."""
    job, last = letter.job, letter.last
    return (
        (not selection.references or bool(named_by(selection, letter)))
        and (not selection.job_types or job.job_type in selection.job_types)
        and (not selection.tenants or job.tenant in selection.tenants)
        and (not selection.reasons or letter.reason in selection.reasons)
        and (not selection.errors or not selection.errors.isdisjoint(class_names(last.error_class)))
        and not selection.schemas
        and selection.since <= _died_at(letter.record, last) < selection.until
        and selection.search.lower() in last.message.lower()
    )


def class_names(error_class: str) -> tuple[str, str]:
    """A class with its module, and without."""
    return error_class, error_class.rpartition(".")[2]


def named_by(selection: Selection, letter: Letter) -> frozenset[str | Position]:
    """The references that name this letter."""
    return selection.references.intersection((letter.job.job_id, letter.position))


class Standing(StrEnum):
    """What has become of a letter's job."""

    OPEN = "open"  # dead since: a replay will run
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REPLAYED = "already replayed"  # the job went on from this letter; it may have died again, with a letter of its own
    UNSETTLED = (
        "not settled yet"  # the letter is written, but its worker has yet to record that the job is dead
    )


def standing(hop: int, row: Row | None) -> Standing:
    """What a job's row in the store says of a letter of that hop; a job that it does not know (any more) is open."""
    if row is None:
        return Standing.OPEN
    if row.state is JobState.COMPLETED:
        return Standing.COMPLETED
    if row.state is JobState.CANCELLED:
        return Standing.CANCELLED
    if row.hop > hop:
        return Standing.REPLAYED
    settled = row.state is JobState.DEAD or row.hop < hop
    return Standing.OPEN if settled else Standing.UNSETTLED
