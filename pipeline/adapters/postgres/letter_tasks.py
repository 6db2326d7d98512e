"""What a task of the dead-letter desk does, on a connection: it is recorded, it takes letters in hand, it settles them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from pipeline.adapters.postgres.arrays import numbers, texts
from pipeline.adapters.postgres.letter_select import condition, filled
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection
from pipeline.core.claims import Row
from pipeline.core.desk import (
    Candidate,
    Ends,
    InDoubt,
    Outcome,
    Scope,
    Step,
    Task,
    TaskKind,
    TaskState,
    Told,
)
from pipeline.core.job import Source
from pipeline.core.letter_facts import LetterState
from pipeline.core.selection import Position, Selection
from pipeline.core.state import JobState

__all__ = [
    "doubt",
    "in_doubt",
    "lock",
    "look",
    "move_all",
    "new_task",
    "outcomes_of_letter",
    "outcomes_of_task",
    "purge",
    "save",
    "settle",
    "stranded",
    "take",
    "tasks",
    "unlock",
]

_NOWHERE = Source("", -1, -1)
# A look-up for each row: to call the enumeration takes three times as long.
_LETTER_STATES = {state.value: state for state in LetterState}
_JOB_STATES = {state.value: state for state in JobState}


# --- tasks


def new_task(connection: Connection, task: Task) -> int:
    """Record a task that begins; give its number."""
    values = {
        "kind": task.kind,
        "who": task.who,
        "why": task.why,
        "selection": Jsonb(task.selection.to_json()),
        "options": Jsonb(dict(task.options)),
        "ends": Jsonb(_plain(task.ends)),
        "old_value": task.old_value,
        "new_value": task.new_value,
    }
    row = connection.execute(QUERIES["task_new"], values).fetchone()
    assert row is not None
    return int(row[0])


def lock(connection: Connection, task: int) -> bool:
    """Hold a task until it is unlocked or this connection ends; False when another one holds it."""
    row = connection.execute(QUERIES["task_lock"], {"task": task}).fetchone()
    return row is not None and bool(row[0])


def unlock(connection: Connection, task: int) -> None:
    connection.execute(QUERIES["task_unlock"], {"task": task})


def save(connection: Connection, task: int, state: TaskState, counts: Mapping[str, int] | None) -> None:
    values = {"task": task, "state": state, "counts": None if counts is None else Jsonb(dict(counts))}
    connection.execute(QUERIES["task_save"], values)


def doubt(connection: Connection, task: int, ends: Ends) -> None:
    """Remember where topics of others end before letters are sent there."""
    connection.execute(QUERIES["task_doubt"], {"task": task, "in_doubt": Jsonb(_plain(ends))})


def tasks(connection: Connection, *, task: int = 0, limit: int = 1) -> list[Task]:
    """One task, or (0) the latest ones, the latest first."""
    return [_task(row) for row in connection.execute(QUERIES["tasks"], {"task": task, "limit": limit})]


def _task(row: tuple[Any, ...]) -> Task:
    number, kind, state, who, why, selection, options, ends, cursor, counts, doubts, *rest = row
    return Task(
        TaskKind(kind),
        who,
        why,
        Selection.from_json(selection),
        options,
        _ends(ends),
        number,
        TaskState(state),
        _ends(cursor),
        counts,
        _ends(doubts),
        *rest,
    )


def _plain(ends: Ends) -> dict[str, dict[str, int]]:
    return {name: {str(partition): end for partition, end in of.items()} for name, of in ends.items()}


def _ends(stored: Mapping[str, Mapping[str, int]]) -> Ends:
    return {name: {int(partition): end for partition, end in of.items()} for name, of in stored.items()}


# --- letters


def look(connection: Connection, scope: Scope, letters: Mapping[Position, str]) -> list[Candidate]:
    """Lock those of these letters (with their job ids) that are meant, in order; within a transaction."""
    where, values = condition(scope)
    (queue,) = scope.queues
    given = {
        **values,
        "queue": queue,
        **_positions(list(letters)),
        "job_id": texts(list(letters.values())),
    }
    found = connection.execute(filled(QUERIES["letters_look"], where), given)
    return [_candidate(row) for row in found]


def _candidate(row: tuple[Any, ...]) -> Candidate:
    partition, offset, hop, replays, state, job_state, job_hop, copy = row
    known = Row(_JOB_STATES[job_state], job_hop, 0, "", _NOWHERE) if job_state is not None else None
    return Candidate(Position(partition, offset), hop, replays, _LETTER_STATES[state], known, copy)


def take(
    connection: Connection, task: int, queue: str, taken: Sequence[Position], moved: Sequence[Outcome]
) -> None:
    """Put letters into this task's hand: until they are settled nobody else takes them. Move others at once."""
    connection.execute(QUERIES["letters_take"], {"task": task, "queue": queue, **_positions(taken)})
    _move(connection, task, queue, moved)


def settle(connection: Connection, task: int, queue: str, step: Step) -> None:
    """Move letters to where a task brought them, and save how far it has come."""
    _move(connection, task, queue, step.outcomes)
    reached = {"cursor": Jsonb(_plain(step.cursor)), "counts": Jsonb(dict(step.counts))}
    connection.execute(QUERIES["task_reached"], {"task": task, **reached})


def _move(connection: Connection, task: int, queue: str, outcomes: Sequence[Outcome]) -> None:
    if not outcomes:
        return
    targets = [outcome.target or _NOWHERE for outcome in outcomes]
    values = {
        "task": task,
        "queue": queue,
        **_positions([outcome.position for outcome in outcomes]),
        "state": texts([outcome.state for outcome in outcomes]),
        "detail": texts([outcome.detail for outcome in outcomes]),
        "target_topic": texts([target.topic for target in targets]),
        "target_partition": numbers([target.partition for target in targets]),
        "target_offset": numbers([target.offset for target in targets]),
    }
    connection.execute(QUERIES["letters_settle"], values)


def move_all(connection: Connection, task: int, scope: Scope, to: LetterState) -> int:
    """Move all letters of a scope to one state, and keep that; give how many."""
    where, values = condition(scope)
    query = filled(QUERIES["letters_move"], where)
    return connection.execute(query, {**values, "task": task, "to": to}).rowcount


def in_doubt(connection: Connection, task: int) -> list[InDoubt]:
    found = connection.execute(QUERIES["letters_in_doubt"], {"task": task})
    return [InDoubt(queue, Position(*at), foreign, age) for queue, *at, foreign, age in found]


def stranded(connection: Connection) -> list[int]:
    """Tasks whose process died with letters in hand."""
    return [task for (task,) in connection.execute(QUERIES["letters_stranded"])]


def purge(connection: Connection, queue: str, *, age: float, first: Mapping[int, int]) -> tuple[int, int]:
    """Delete letters that were resolved so many seconds ago, and the outcomes of those whose record is gone, too."""
    values = {"queue": queue, "age": age}
    letters = connection.execute(QUERIES["letters_purge"], values).rowcount
    gone = {"partition": numbers(list(first)), "first": numbers(list(first.values()))}
    return letters, connection.execute(QUERIES["outcomes_purge"], {**values, **gone}).rowcount


def outcomes_of_task(connection: Connection, task: int, *, limit: int) -> list[Told]:
    found = connection.execute(QUERIES["outcomes_of_task"], {"task": task, "limit": limit})
    return [_told(row) for row in found]


def outcomes_of_letter(connection: Connection, job_id: str) -> list[Told]:
    """What tasks did with the letters of a job, in order of time."""
    return [_told(row) for row in connection.execute(QUERIES["outcomes_of_letter"], {"job_id": job_id})]


def _told(row: tuple[Any, ...]) -> Told:
    queue, partition, offset, job_id, hop, state, detail, at, *target, task = row
    place = Source(*target) if target[0] else None
    outcome = Outcome(Position(partition, offset), LetterState(state), detail, place)
    return Told(queue, job_id, hop, outcome, at, task)


def _positions(letters: Sequence[Position]) -> dict[str, str]:
    return {
        "partition": numbers([letter.partition for letter in letters]),
        "offset": numbers([letter.offset for letter in letters]),
    }
