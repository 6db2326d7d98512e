"""The index of dead letters, and the record of what operators did with them: `pipeline.runtime.dlq_ports.LetterIndex`.

Two connections: one that holds the tasks in hand (a lock ends with its connection, so a process that dies lets go at once)
and does what is short, and one for questions that may take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.adapters.postgres import letter_reading as reading
from pipeline.adapters.postgres import letter_tasks as tasks
from pipeline.adapters.postgres import letter_writing as writing
from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.session import FIXED_PLANS, Connection, Session, Target
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

    def close(self) -> None:
        self._hand.close()
        self._questions.close()

    # --- keeping it complete

    def known_spans(self, queue: str) -> dict[int, Span]:
        return self._hand.run(lambda connection: writing.known_spans(connection, queue))

    def gaps(self, queue: str, spans: Sequence[Span]) -> list[Span]:
        return self._questions.run(lambda connection: writing.gaps(connection, queue, spans))

    def put(self, letters: Sequence[LetterFacts], *, refresh: bool = False) -> int:
        return self._hand.run(lambda connection: writing.put_letters(connection, letters, refresh=refresh))

    def advance(self, queue: str, spans: Sequence[Span]) -> None:
        self._hand.run(lambda connection: writing.advance(connection, queue, spans))

    def expire(self, queue: str, spans: Sequence[Span]) -> int:
        return self._hand.run(lambda connection: writing.expire(connection, queue, spans))

    def forget(self, queue: str, spans: Sequence[Span]) -> int:
        return self._hand.run(lambda connection: writing.forget(connection, queue, spans))

    def purge(self, queue: str, *, age: float, first: Mapping[int, int]) -> tuple[int, int]:
        return self._hand.run(lambda connection: tasks.purge(connection, queue, age=age, first=first))

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

        return self._hand.run(work)

    def hold(self, task: int) -> bool:
        return self._hand.run(lambda connection: tasks.lock(connection, task))

    def release(self, task: int) -> None:
        self._hand.run(lambda connection: tasks.unlock(connection, task))

    def tasks(self, *, task: int = 0, limit: int = 1) -> list[Task]:
        return self._questions.run(lambda connection: tasks.tasks(connection, task=task, limit=limit))

    def save(self, task: int, state: TaskState, *, cursor: Ends, counts: Mapping[str, int]) -> None:
        self._hand.run(lambda connection: tasks.save(connection, task, state, cursor=cursor, counts=counts))

    def doubt(self, task: int, ends: Ends) -> None:
        self._hand.run(lambda connection: tasks.doubt(connection, task, ends))

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
        """Lock those of the letters (with their job ids) that are meant, do the work, and keep what came of it.

        Nobody else takes them meanwhile. If this process dies, they are as they were. Letters that are not among the
        candidates are not meant, or another task has them.
        """
        (queue,) = scope.queues

        def locked(connection: Connection) -> None:
            with connection.transaction():
                step = work(tasks.look(connection, scope, letters))
                tasks.settle(connection, task, queue, step)

        self._hand.run(locked)

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

        self._hand.run(locked)

    def settle(self, task: int, queue: str, step: Step) -> None:
        def work(connection: Connection) -> None:
            with connection.transaction():
                tasks.settle(connection, task, queue, step)

        self._hand.run(work)

    def move_all(self, task: int, scope: Scope, to: LetterState) -> int:
        return self._questions.run(lambda connection: tasks.move_all(connection, task, scope, to))
