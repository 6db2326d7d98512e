"""The index of dead letters, and the record of what operators did with them: `pipeline.runtime.dlq_ports.LetterIndex`.

One connection holds the tasks in hand (a lock ends with its connection, so a process that dies lets go at once) and does what
is short, one is for questions that may take seconds, and two are for letters that are worked on, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pipeline.adapters.postgres import letter_reading as reading
from pipeline.adapters.postgres import letter_tasks as tasks
from pipeline.adapters.postgres import letter_writing as writing
from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.session import FIXED_PLANS, Connection, Session, Target
from pipeline.adapters.postgres.turns import Turns
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
from pipeline.core.letter_facts import LetterFacts, LetterState
from pipeline.core.selection import Position

__all__ = ["PostgresLetterIndex"]

T = TypeVar("T")

# A plan joins and groups a million letters: on disk that takes twice as long.
_READING = {"work_mem": "128MB", "jit": "off"}


class PostgresLetterIndex:
    """See `pipeline.runtime.dlq_ports.LetterIndex`. Making one does not connect; raises `ConfigError` for a wrong DSN or schema.

    Calls raise `StoreUnavailable`, the first ones also `DatabaseNotMigrated`. For one thread.
    """

    def __init__(self, dsn: str, *, schema: str = "pipeline", connect_timeout: float = 5) -> None:
        target = Target.of(dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=0)
        self._hand = Session(target, "desk", FIXED_PLANS, on_connect=check_migrated)
        self._questions = Session(target, "desk questions", _READING, on_connect=check_migrated)
        self._turns = Turns(lambda: Session(target, "desk letters", FIXED_PLANS, on_connect=check_migrated))

    def _in_turn(self, work: Callable[[Connection], T]) -> T:
        """Once what was worked on is kept."""
        self._turns.finish()
        return self._hand.run(work)

    def close(self) -> None:
        self._turns.close()
        self._hand.close()
        self._questions.close()

    # --- keeping it complete

    def known_spans(self, queue: str) -> dict[int, Span]:
        return self._in_turn(lambda connection: writing.known_spans(connection, queue))

    def gaps(self, queue: str, spans: Sequence[Span]) -> list[Span]:
        return self._questions.run(lambda connection: writing.gaps(connection, queue, spans))

    def put(self, letters: Sequence[LetterFacts], *, refresh: bool = False) -> int:
        return self._in_turn(lambda connection: writing.put_letters(connection, letters, refresh=refresh))

    def advance(self, queue: str, spans: Sequence[Span]) -> None:
        self._in_turn(lambda connection: writing.advance(connection, queue, spans))

    def expire(self, queue: str, spans: Sequence[Span]) -> int:
        return self._in_turn(lambda connection: writing.expire(connection, queue, spans))

    def forget(self, queue: str, spans: Sequence[Span]) -> int:
        return self._in_turn(lambda connection: writing.forget(connection, queue, spans))

    def purge(self, queue: str, *, age: float, first: Mapping[int, int]) -> tuple[int, int]:
        return self._in_turn(lambda connection: tasks.purge(connection, queue, age=age, first=first))

    # --- questions

    def page(self, scope: Scope, *, limit: int, after: LetterKey | None = None) -> list[IndexedLetter]:
        return self._questions.run(
            lambda connection: reading.page(connection, scope, limit=limit, after=after)
        )

    def among(self, scope: Scope, letters: Sequence[Position]) -> list[IndexedLetter]:
        return self._questions.run(lambda connection: reading.among(connection, scope, letters))

    def count(self, scope: Scope) -> int:
        return self._questions.run(lambda connection: reading.count(connection, scope))

    def groups(self, scope: Scope, by: Sequence[str], *, limit: int) -> list[Group]:
        return self._questions.run(lambda connection: reading.groups(connection, scope, by, limit=limit))

    def plan(self, scope: Scope, ends: Ends, *, max_replays: int) -> list[PlanGroup]:
        return self._questions.run(
            lambda connection: reading.plan(connection, scope, ends, max_replays=max_replays)
        )

    def spans(self, scope: Scope, within: Sequence[Span], *, tolerance: int) -> list[Span]:
        return self._questions.run(
            lambda connection: reading.spans(connection, scope, within, tolerance=tolerance)
        )

    # --- tasks

    def begin(self, task: Task) -> int:
        def work(connection: Connection) -> int:
            with connection.transaction():
                number = tasks.new_task(connection, task)
                tasks.lock(connection, number)
                return number

        return self._in_turn(work)

    def hold(self, task: int) -> bool:
        return self._in_turn(lambda connection: tasks.lock(connection, task))

    def release(self, task: int) -> None:
        self._in_turn(lambda connection: tasks.unlock(connection, task))

    def tasks(self, *, task: int = 0, limit: int = 1) -> list[Task]:
        return self._questions.run(lambda connection: tasks.tasks(connection, task=task, limit=limit))

    def save(self, task: int, state: TaskState, counts: Mapping[str, int] | None = None) -> None:
        self._in_turn(lambda connection: tasks.save(connection, task, state, counts))

    def doubt(self, task: int, ends: Ends) -> None:
        self._in_turn(lambda connection: tasks.doubt(connection, task, ends))

    def stranded(self) -> list[int]:
        return self._questions.run(tasks.stranded)

    def in_doubt(self, task: int) -> list[InDoubt]:
        return self._questions.run(lambda connection: tasks.in_doubt(connection, task))

    def outcomes_of_task(self, task: int, *, limit: int) -> list[Told]:
        return self._questions.run(lambda connection: tasks.outcomes_of_task(connection, task, limit=limit))

    def outcomes_of_letter(self, job_id: str) -> list[Told]:
        return self._questions.run(lambda connection: tasks.outcomes_of_letter(connection, job_id))

    # --- letters

    def work_on(
        self,
        task: int,
        scope: Scope,
        letters: Mapping[Position, str],
        work: Callable[[Sequence[Candidate]], Step],
    ) -> None:
        """See `LetterIndex.work_on`. The work is done on a thread of this index, while its caller waits."""
        (queue,) = scope.queues

        def look(connection: Connection) -> Step:
            return work(tasks.look(connection, scope, letters))

        def settle(connection: Connection, step: Step) -> None:
            tasks.settle(connection, task, queue, step)

        self._turns.take(look, settle)

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
        (queue,) = scope.queues

        def locked(connection: Connection) -> None:
            with connection.transaction():
                tasks.take(connection, task, queue, *judge(tasks.look(connection, scope, letters)))

        self._in_turn(locked)

    def settle(self, task: int, queue: str, step: Step) -> None:
        def work(connection: Connection) -> None:
            with connection.transaction():
                tasks.settle(connection, task, queue, step)

        self._in_turn(work)

    def move_all(self, task: int, scope: Scope, to: LetterState) -> int:
        return self._questions.run(lambda connection: tasks.move_all(connection, task, scope, to))
