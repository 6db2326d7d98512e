"""What the dead-letter desk asks of Kafka and of Postgres."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from pipeline.core.desk import (
    Candidate,
    Ends,
    Group,
    IndexedLetter,
    InDoubt,
    LetterKey,
    Outcome,
    PlanGroup,
    Scope,
    Span,
    Step,
    Task,
    TaskState,
    Told,
)
from pipeline.core.job import Record
from pipeline.core.letter_facts import LetterFacts, LetterState
from pipeline.core.selection import Position

__all__ = ["LetterIndex", "LetterTopics"]


class LetterTopics(Protocol):
    """Topics, read outside any group. Calls raise `TopicsMissing`, `BrokerUnavailable`."""

    def bounds(self, topic: str) -> Sequence[Span]:
        """Where each partition begins, and where it ends at the moment."""
        ...

    def read(self, topic: str, spans: Sequence[Span]) -> Generator[Record]:
        """Every record in these spans, ordered within a partition."""
        ...


class LetterIndex(Protocol):
    """The index of dead letters, and the record of what operators did with them. For one thread.

    Calls raise `StoreUnavailable`, `DatabaseNotMigrated`.
    """

    # --- keeping it complete

    def known_spans(self, queue: str) -> Mapping[int, Span]:
        """Of each partition, where it began when it was last looked at, and up to where the index is complete."""
        ...

    def gaps(self, queue: str, spans: Sequence[Span]) -> Sequence[Span]:
        """What the index lacks of these spans."""
        ...

    def put(self, letters: Sequence[LetterFacts], *, refresh: bool = False) -> int:
        """Put letters into the index; give how many were not there. To `refresh` also corrects those that are."""
        ...

    def advance(self, queue: str, spans: Sequence[Span]) -> None:
        """Remember these as `known_spans`."""
        ...

    def expire(self, queue: str, spans: Sequence[Span]) -> int:
        """Mark letters that wait where the topic has nothing any more; give how many."""
        ...

    def forget(self, queue: str, spans: Sequence[Span]) -> int:
        """Delete what a topic that was made anew does not have; give how many."""
        ...

    def purge(self, queue: str, *, age: float, first: Mapping[int, int]) -> tuple[int, int]:
        """Delete letters resolved so many seconds ago, then outcomes of records that left the topic; give both counts."""
        ...

    # --- questions

    def page(self, scope: Scope, *, limit: int, after: LetterKey | None = None) -> Sequence[IndexedLetter]:
        """The newest letters, or those that come after one."""
        ...

    def among(self, scope: Scope, letters: Sequence[Position]) -> Sequence[IndexedLetter]:
        """Those of these letters of one queue that are meant."""
        ...

    def count(self, scope: Scope) -> int: ...

    def groups(self, scope: Scope, by: Sequence[str], *, limit: int) -> Sequence[Group]:
        """Letters by what they have in common, the largest group first."""
        ...

    def plan(self, scope: Scope, ends: Ends, *, max_replays: int) -> Sequence[PlanGroup]:
        """What a replay would make of the letters before `ends`."""
        ...

    def spans(self, scope: Scope, within: Sequence[Span], *, tolerance: int) -> Sequence[Span]:
        """Where the letters of one queue lie, within these spans, in runs of offsets."""
        ...

    # --- tasks

    def begin(self, task: Task) -> int:
        """Record a task, and hold it; give its number."""
        ...

    def hold(self, task: int) -> bool:
        """Hold a task until it is released or this process ends; False when another one holds it."""
        ...

    def release(self, task: int) -> None: ...

    def tasks(self, *, task: int = 0, limit: int = 1) -> Sequence[Task]:
        """One task, or (0) the latest ones, the latest first."""
        ...

    def save(self, task: int, state: TaskState, counts: Mapping[str, int] | None = None) -> None:
        """Once all that was worked on is kept. Without `counts` they stay as they are."""
        ...

    def doubt(self, task: int, ends: Ends) -> None:
        """Remember where topics of others end before letters are sent there."""
        ...

    def stranded(self) -> Sequence[int]:
        """Tasks whose process died with letters in hand."""
        ...

    def in_doubt(self, task: int) -> Sequence[InDoubt]:
        """What a task had in hand when its process died."""
        ...

    def outcomes_of_task(self, task: int, *, limit: int) -> Sequence[Told]: ...

    def outcomes_of_letter(self, job_id: str) -> Sequence[Told]:
        """What tasks did with the letters of a job, in order of time."""
        ...

    # --- letters

    def work_on(
        self,
        task: int,
        scope: Scope,
        letters: Mapping[Position, str],
        work: Callable[[Sequence[Candidate]], Step],
    ) -> None:
        """Lock those of the letters (with their job ids) that are meant, do the work, and keep what came of it.

        Nobody else takes them meanwhile. If this process dies, they are as they were. Letters that are not among the
        candidates are not meant, or another task has them.

        What came of the work is kept while the caller goes on with the next letters, one after the other: what prevented it is
        raised by one of the next calls, and then nothing of what was worked on since is kept either.
        """
        ...

    def take(
        self,
        task: int,
        scope: Scope,
        letters: Mapping[Position, str],
        judge: Callable[[Sequence[Candidate]], tuple[Sequence[Position], Sequence[Outcome]]],
    ) -> None:
        """The same for letters that must not be sent twice: what `judge` takes stays in this task's hand until settled.

        It also gives what becomes of others at once. If this process dies, what it took is in doubt.
        """
        ...

    def settle(self, task: int, queue: str, step: Step) -> None:
        """Move letters to where a task brought them, and save how far it has come; all or nothing."""
        ...

    def move_all(self, task: int, scope: Scope, to: LetterState) -> int:
        """Move all letters of a scope to one state, at once; give how many."""
        ...
