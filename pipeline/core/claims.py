"""The claim rule: who may run a job.

One row per job id. A record's *hop* counts how often its job was published onward; the row knows the highest hop that
was settled or claimed. The rule is exhaustively checked as a model; its SQL form stands in the Postgres adapter, and one
conformance suite holds both against each other.

1. No row: claimed. Completed or cancelled: duplicate.
2. The record's hop is lower than the row's: duplicate, an older copy. Dead: claimed if its hop is higher (a replay),
   else duplicate. Retrying: claimed, but a record of the row's own hop only when the retry is due, else held.
3. Running on a worker that is dead, or claimed by this very worker which does not know of it (the answer to its claim
   was lost on the way): claimed, with the next token.
4. Running on a live worker: the same source record came again by a rebalance, or the record has a higher hop (its
   sender is about to move the state): held, to be looked at again. *Dropping either would lose the job.* Another record
   of the same hop: duplicate, published twice.

A job that is retried *in place* (its type runs in order, by key) is not published onward: the row goes to retrying with the
hop that it has, so that the very same record can be claimed again, here or by its partition's next owner. That record tells
only of the first attempt and of no due time: the row knows both, and the answer to a claim tells them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pipeline.core.job import Source
from pipeline.core.letter_facts import LetterFacts
from pipeline.core.outcome import Failure
from pipeline.core.state import JobState

__all__ = [
    "Claim",
    "ClaimRequest",
    "Row",
    "Settled",
    "Settlement",
    "Verdict",
    "attempt_of",
    "judge",
    "refusal",
]


class Verdict(StrEnum):
    CLAIMED = "claimed"
    DUPLICATE = "duplicate"
    HELD = "held"


class ClaimRequest(NamedTuple):
    """A record whose job a worker wants to run now. Times are epoch seconds."""

    job_id: str
    job_type: str
    tenant: str
    queue: str
    attempt: int
    hop: int
    topic: str
    partition: int
    offset: int
    enqueued_at: float


class Claim(NamedTuple):
    """The answer to a request.

    `token` is the fencing token of a granted claim, or of the run that a repeated one ended with, else 0. `previous` is the
    worker from which a running job was taken over, empty otherwise. `state` is what the row was before: None for a new row.
    `repeated` says of a duplicate that it is the very record that the row was last claimed from: a worker ended before it had
    committed it. `attempt` is set where the row knows better than the record which attempt this is, and `due_at` (epoch
    seconds) where a held job waits for that time. `crashes` is None unless the job is a suspect: it was running on a worker
    that died, or the process died so often in which it ran alone. Once a suspect, always a suspect.
    """

    verdict: Verdict
    token: int = 0
    state: JobState | None = None
    previous: str = ""
    repeated: bool = False
    attempt: int = 0
    due_at: float = 0.0
    crashes: int | None = None


class Settlement(NamedTuple):
    """The end of a run, to be written only if `token` still holds.

    `hop` is what the row's hop becomes: that of the next record when one was published onward to run, else the job's.
    `state` is completed, retrying, dead or cancelled. Times are epoch seconds, `due_at` 0 when nothing waits. `attempt` is
    the one that ran; `next_attempt`, of a retrying job, the one to come. `crashed` says that the run ended with its process.
    `letter` is what the index keeps of a dead job's letter, which the broker has acknowledged; it goes with the state.
    """

    job_id: str
    token: int
    state: JobState
    attempt: int
    hop: int
    started_at: float
    finished_at: float
    due_at: float = 0.0
    reason: str = ""
    failure: Failure | None = None
    next_attempt: int = 0
    crashed: bool = False
    letter: LetterFacts | None = None

    @property
    def row_attempt(self) -> int:
        """What the row's attempt becomes."""
        return self.next_attempt or self.attempt


class Settled(NamedTuple):
    """Whether a settlement was accepted; when not, the token that the row has now (0: no row)."""

    accepted: bool
    current_token: int


class Row(NamedTuple):
    """What the rule needs of a job's row.

    `attempt` is the one that runs or ran, or the next one while the job is retrying. `due_at` is when a retrying job may run
    (epoch seconds), 0 once it may.
    """

    state: JobState
    hop: int
    token: int
    worker: str
    source: Source
    attempt: int = 1
    due_at: float = 0.0


def judge(row: Row | None, request: ClaimRequest, *, worker: str, owner_alive: bool) -> Verdict:
    """Apply the rule. The caller guarantees that `worker` itself is not running this job now."""
    if row is None:
        return Verdict.CLAIMED
    if row.state in (JobState.COMPLETED, JobState.CANCELLED) or request.hop < row.hop:
        return Verdict.DUPLICATE
    if row.state is JobState.DEAD:
        return Verdict.CLAIMED if request.hop > row.hop else Verdict.DUPLICATE
    if row.state is JobState.RETRYING:
        return Verdict.HELD if row.due_at and request.hop == row.hop else Verdict.CLAIMED
    if not owner_alive or row.worker == worker:
        return Verdict.CLAIMED
    same_record = row.source == (request.topic, request.partition, request.offset)
    return Verdict.HELD if same_record or request.hop > row.hop else Verdict.DUPLICATE


def refusal(row: Row, request: ClaimRequest, verdict: Verdict) -> Claim:
    """The answer to a request that is not granted."""
    if verdict is Verdict.HELD:
        return Claim(verdict, 0, row.state, due_at=row.due_at)
    same_record = row.source == (request.topic, request.partition, request.offset)
    return Claim(verdict, row.token if same_record else 0, row.state, repeated=same_record)


def attempt_of(row: Row, request: ClaimRequest) -> int:
    """For `Claim.attempt`: which attempt a granted request is, 0 when the record itself says so."""
    return row.attempt if request.hop == row.hop and row.attempt > request.attempt else 0
