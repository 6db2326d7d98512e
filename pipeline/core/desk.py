"""What the dead-letter desk and its index tell each other. Times are epoch seconds; 0 means that it did not happen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.core.claims import Row
from pipeline.core.job import Source
from pipeline.core.letter_facts import LetterFacts, LetterState
from pipeline.core.selection import Position, Selection

__all__ = [
    "Candidate",
    "Ends",
    "Group",
    "InDoubt",
    "IndexedLetter",
    "LetterKey",
    "Outcome",
    "PlanGroup",
    "Scope",
    "Span",
    "Step",
    "Task",
    "TaskKind",
    "TaskState",
    "Told",
]

Ends = Mapping[str, Mapping[int, int]]  # queue (or topic) -> partition -> offset

_NOWHERE: Ends = MappingProxyType({})
_NO_COUNTS: Mapping[str, int] = MappingProxyType({})


class Scope(NamedTuple):
    """The letters of a selection in these queues and states."""

    selection: Selection
    queues: Sequence[str]
    states: Collection[LetterState]


class LetterKey(NamedTuple):
    """Where a page of letters, the newest first, goes on."""

    dead_at: float
    queue: str
    partition: int
    offset: int


class IndexedLetter(NamedTuple):
    """A letter as the index has it. `since` is when it came into its state, `task` which task brought it there."""

    facts: LetterFacts
    state: LetterState = LetterState.OPEN
    since: float = 0.0
    task: int = 0

    @property
    def key(self) -> LetterKey:
        facts = self.facts
        return LetterKey(facts.dead_at, facts.queue, facts.partition, facts.offset)


class Group(NamedTuple):
    """Letters that have `values` in common: how many, and when the first and the last one died."""

    values: tuple[str, ...]
    letters: int
    oldest: float
    newest: float


class PlanGroup(NamedTuple):
    """Letters of which a replay would make the same.

    `unreadable` ones died because they could not be read, `foreign` ones carry no job of ours, `worn` ones were replayed
    as often as is allowed. `standing` is the letter's state, or what became of its job: completed, cancelled, replayed,
    or unsettled.
    """

    queue: str
    priority: str
    origin: str
    job_type: str
    tenant: str
    schema: str
    malformed: bool
    unreadable: bool
    foreign: bool
    worn: bool
    standing: str
    letters: int


class Span(NamedTuple):
    """A run of offsets of a partition, `stop` excluded, in which `letters` are wanted."""

    partition: int
    start: int
    stop: int
    letters: int = 0


class Candidate(NamedTuple):
    """A letter that a task has locked, and may take. `row` is that of its job, `copy` says that another was replayed."""

    position: Position
    hop: int
    replays: int
    state: LetterState
    row: Row | None
    copy: bool


class Outcome(NamedTuple):
    """What a task made of a letter; `target` is where a replay wrote it."""

    position: Position
    state: LetterState
    detail: str = ""
    target: Source | None = None


class Step(NamedTuple):
    """What came of some letters, and how far their task has come with it."""

    outcomes: Sequence[Outcome]
    cursor: Ends
    counts: Mapping[str, int]


class Told(NamedTuple):
    """An outcome as it is on record."""

    queue: str
    job_id: str
    hop: int
    outcome: Outcome
    at: float
    task: int


class InDoubt(NamedTuple):
    """A letter that a task had in hand when its process died, `age` seconds ago: whether it was sent is not known."""

    queue: str
    position: Position
    foreign: bool
    age: float


class TaskKind(StrEnum):
    REPLAY = "replay"
    PARK = "park"
    DISCARD = "discard"
    REOPEN = "reopen"
    EDIT = "edit"


class TaskState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # never stored: it is running, and nobody holds it


class Task(NamedTuple):
    """Something that an operator did with letters, or is about to.

    Letters from `ends` on are not meant; those before `cursor` are dealt with. `in_doubt` has the ends that topics of
    others had before the batch in hand was sent.
    """

    kind: TaskKind
    who: str
    why: str
    selection: Selection
    options: Mapping[str, Any]
    ends: Ends
    id: int = 0
    state: TaskState = TaskState.RUNNING
    cursor: Ends = _NOWHERE
    counts: Mapping[str, int] = _NO_COUNTS
    in_doubt: Ends = _NOWHERE
    created_at: float = 0.0
    updated_at: float = 0.0
    finished_at: float = 0.0
    old_value: bytes | None = None
    new_value: bytes | None = None
