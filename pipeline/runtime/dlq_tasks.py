"""What operators do with letters, as tasks on record: replays that begin or go on, and letters moved all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.desk import Ends, Scope, Task, TaskKind, TaskState
from pipeline.core.letter_facts import LetterState
from pipeline.errors import PipelineError
from pipeline.runtime.dlq_ports import LetterIndex

__all__ = ["MOVES", "Operator", "TaskRefused", "begin", "move", "resume"]

# What moves letters -> from which states, to which.
MOVES: Mapping[TaskKind, tuple[Sequence[LetterState], LetterState]] = {
    TaskKind.PARK: ((LetterState.OPEN,), LetterState.PARKED),
    TaskKind.DISCARD: (
        (LetterState.OPEN, LetterState.PARKED, LetterState.EXPIRED),
        LetterState.DISCARDED,
    ),
    TaskKind.REOPEN: ((LetterState.PARKED, LetterState.DISCARDED), LetterState.OPEN),
}


class TaskRefused(PipelineError):
    """A task cannot be resumed: there is none of that number, it is done, or another process works on it."""


class Operator(NamedTuple):
    """Who does something, and why."""

    who: str
    why: str = ""


def begin(
    index: LetterIndex,
    kind: TaskKind,
    scope: Scope,
    *,
    ends: Ends,
    operator: Operator,
    options: Mapping[str, Any],
    values: tuple[bytes | None, bytes | None] = (None, None),
) -> Task:
    """Record a task and hold it. `values` are the payload before and after an edit."""
    task = Task(kind, *operator, scope.selection, options, ends, old_value=values[0], new_value=values[1])
    return task._replace(id=index.begin(task))


def resume(index: LetterIndex, number: int) -> Task:
    """Hold a task that was begun before, to go on with it. Raises `TaskRefused`."""
    found = index.tasks(task=number) if number > 0 else []
    if not found:
        raise TaskRefused(f"there is no task {number}; `pipeline dlq audit` lists those there are")
    task = found[0]
    if task.kind not in (TaskKind.REPLAY, TaskKind.EDIT) or task.state is TaskState.DONE:
        raise TaskRefused(
            f"task {number} is a {task.kind} and is {task.state}; allowed: a replay that is not done"
        )
    if not index.hold(number):
        raise TaskRefused(f"task {number} is running: another process works on it")
    index.save(number, TaskState.RUNNING)
    return task._replace(state=TaskState.RUNNING)


def move(
    index: LetterIndex, kind: TaskKind, scope: Scope, *, ends: Ends, operator: Operator
) -> tuple[int, int]:
    """Move all letters of a scope as `MOVES` says; give the task's number, and how many were moved."""
    _, to = MOVES[kind]
    task = begin(index, kind, scope, ends=ends, operator=operator, options={"queues": list(scope.queues)})
    moved = index.move_all(task.id, scope, to)
    index.save(task.id, TaskState.DONE, {"moved": moved})
    index.release(task.id)
    return task.id, moved
