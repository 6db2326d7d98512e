"""Replays dead letters into the main topic of their queue, or tells what a replay would do.

Plan and replay are one walk over the letters, so they cannot disagree about them. The store is asked, batch by batch,
what has become of the jobs, only to spare records that would run in vain: when it does not answer the walk goes on,
for the claim rule alone makes sure that a letter which is replayed twice runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pipeline.core.claims import Row
from pipeline.core.job import Job
from pipeline.core.letters import Letter, Standing, named_by, standing
from pipeline.core.ports import Delivered, JobProducer
from pipeline.core.selection import Position, Selection
from pipeline.core.topics import TopicNames
from pipeline.errors import (
    BrokerUnavailable,
    DatabaseNotMigrated,
    PayloadTooLarge,
    PipelineError,
    RegistryUnavailable,
    StoreUnavailable,
)
from pipeline.runtime.dlq import Desk
from pipeline.runtime.onward import replay_record

__all__ = ["Account", "Flow", "LetterStates", "Remark", "Replayer"]

BATCH_LETTERS = 500
BATCH_BYTES = 8_000_000
MAX_REMARKS = 10
_UNSENT = Delivered(None, None)


class LetterStates(Protocol):
    """What the store knows of the letters' jobs."""

    def rows(self, job_ids: Sequence[str]) -> Mapping[str, Row]:
        """The rows of those jobs that it knows. Raises `StoreUnavailable`, `DatabaseNotMigrated`."""
        ...


class Flow(NamedTuple):
    """Letters that go the same way."""

    job_type: str
    tenant: str
    target: str


class Remark(NamedTuple):
    """Something to be told of one letter."""

    queue: str
    position: Position
    job_id: str
    text: str


@dataclass
class Account:
    """What a replay did, or would do.

    `flows` counts the letters that were sent (would be, in a plan), `undecodable` those of them that no worker of today
    could read. `kept` counts those not sent, and `copies` letters that lie in the DLQ twice. Of failed and undecodable
    letters only the first few are remarked on. `missing` are references that name no letter. `store_problem` is set
    when the store did not answer, `schema_problem` when schemas could not be looked up (letters after that count as
    decodable), `stopped` when the replay was given up before its last letter.
    """

    missing: set[str | Position]
    selected: int = 0
    flows: Counter[Flow] = field(default_factory=Counter)
    undecodable: Counter[Flow] = field(default_factory=Counter)
    kept: Counter[Standing] = field(default_factory=Counter)
    copies: int = 0
    failed: int = 0
    failures: list[Remark] = field(default_factory=list)
    flagged: list[Remark] = field(default_factory=list)
    store_problem: str = ""
    schema_problem: str = ""
    stopped: bool = False

    @property
    def sent(self) -> int:
        return self.flows.total()


class Replayer:
    """`describe` is that of a `Codec`; `declared` are the names of the topics there are."""

    def __init__(
        self,
        *,
        desk: Desk,
        states: LetterStates,
        describe: Callable[[str, bytes, bytes], object],
        names: TopicNames,
        declared: Collection[str],
    ) -> None:
        self._desk = desk
        self._states = states
        self._describe = describe
        self._names = names
        self._declared = frozenset(declared)

    def plan(self, selection: Selection, *, queue: str | None = None) -> Account:
        """What `execute` would do now. Sends nothing. Raises what `Desk.letters` raises."""
        return self._walk(selection, queue, None)

    def execute(self, selection: Selection, *, producer: JobProducer, queue: str | None = None) -> Account:
        """Send the letters that are meant, as they lay in the DLQ when this began. Raises what `Desk.letters` raises.

        What could not be written is in the account; to replay again is safe whatever became of it.
        """
        return self._walk(selection, queue, producer)

    def _walk(self, selection: Selection, queue: str | None, producer: JobProducer | None) -> Account:
        account = Account(missing=set(selection.references))
        seen: set[tuple[str, int]] = set()
        for batch in _batches(self._desk.letters(selection, queue=queue)):
            account.selected += len(batch)
            for letter in batch:
                account.missing -= named_by(selection, letter)
            due = self._open(_once(batch, seen, account), account)
            if due and not self._send(due, account, producer):
                account.stopped = True
                break
        return account

    def _open(self, letters: Sequence[Letter], account: Account) -> list[Letter]:
        """Those whose jobs are dead since; the others are counted."""
        rows = self._rows([letter.job.job_id for letter in letters], account)
        due: list[Letter] = []
        for letter in letters:
            found = standing(letter.job.hop, rows.get(letter.job.job_id))
            if found is Standing.OPEN:
                due.append(letter)
            else:
                account.kept[found] += 1
        return due

    def _rows(self, job_ids: Sequence[str], account: Account) -> Mapping[str, Row]:
        if (
            account.store_problem or not job_ids
        ):  # once without an answer is enough: each try waits its time-out
            return {}
        try:
            return self._states.rows(job_ids)
        except (StoreUnavailable, DatabaseNotMigrated) as error:
            account.store_problem = str(error)
            return {}

    def _send(self, due: Sequence[Letter], account: Account, producer: JobProducer | None) -> bool:
        """Send a batch, or only count it; False when it makes no sense to go on."""
        targets = [self._target(letter.job) for letter in due]
        ends: Sequence[Delivered] = [_UNSENT] * len(due)
        if producer is not None:
            pairs = zip(due, targets, strict=True)
            ends = producer.send_all([replay_record(let.record, let.job, topic=to) for let, to in pairs])
        for letter, target, end in zip(due, targets, ends, strict=True):
            if end.error is None:
                self._count(letter, Flow(letter.job.job_type, letter.job.tenant, target), account)
            else:
                account.failed += 1
                _remark(account.failures, letter, str(end.error))
        return not _all_refused(ends)

    def _target(self, job: Job) -> str:
        """The main topic of the job's priority; where there is none such, of its queue."""
        own = self._names.main(job.queue, job.priority)
        return own if own in self._declared else self._names.main(job.queue)

    def _count(self, letter: Letter, flow: Flow, account: Account) -> None:
        account.flows[flow] += 1
        if problem := self._unreadable(letter, account):
            account.undecodable[flow] += 1
            _remark(account.flagged, letter, problem)

    def _unreadable(self, letter: Letter, account: Account) -> str:
        job = letter.job
        if letter.problem or account.schema_problem:
            return letter.problem
        try:
            self._describe(job.job_type, letter.record.value or b"", job.schema_id)
        except (RegistryUnavailable, BrokerUnavailable) as error:
            account.schema_problem = str(error)  # not asked again: each try waits its time-out
        except PipelineError as error:
            return str(error)
        return ""


def _batches(letters: Iterator[Letter]) -> Iterator[list[Letter]]:
    """Bounded in number and in bytes."""
    batch: list[Letter] = []
    size = 0
    for letter in letters:
        batch.append(letter)
        size += letter.record.size
        if len(batch) >= BATCH_LETTERS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _once(batch: Sequence[Letter], seen: set[tuple[str, int]], account: Account) -> list[Letter]:
    """Without copies: a worker that dies between writing a letter and settling makes another write the same one."""
    fresh: list[Letter] = []
    for letter in batch:
        key = (letter.job.job_id, letter.job.hop)
        if key in seen:
            account.copies += 1
        else:
            seen.add(key)
            fresh.append(letter)
    return fresh


def _all_refused(ends: Iterable[Delivered]) -> bool:
    """Whether nothing of a batch was taken, and not for its size: then the fault is not with the letters."""
    errors = [end.error for end in ends]
    return bool(errors) and all(
        error is not None and not isinstance(error, PayloadTooLarge) for error in errors
    )


def _remark(remarks: list[Remark], letter: Letter, text: str) -> None:
    if len(remarks) < MAX_REMARKS:
        remarks.append(Remark(letter.job.queue, letter.position, letter.job.job_id, text))
