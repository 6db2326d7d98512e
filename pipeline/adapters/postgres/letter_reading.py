"""What is asked of the index of letters, on a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.adapters.postgres.arrays import numbers, texts
from pipeline.adapters.postgres.letter_select import condition, filled
from pipeline.adapters.postgres.letter_writing import values_of
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection
from pipeline.core.desk import Ends, Group, IndexedLetter, LetterKey, PlanGroup, Scope, Span
from pipeline.core.letter_facts import LetterFacts, LetterState
from pipeline.core.selection import Position

__all__ = ["GROUPS", "among", "count", "groups", "open_count", "page", "plan", "spans"]

_FACTS = len(LetterFacts._fields)
# What letters can be grouped by -> its column.
GROUPS: Mapping[str, str] = {
    "queue": "l.queue",
    "type": "l.job_type",
    "tenant": "l.tenant",
    "error": "l.error_class",
    "reason": "l.reason",
    "schema": "l.schema",
    "state": "l.state",
    "topic": "l.last_topic",
    "day": "to_char(l.dead_at at time zone 'UTC', 'YYYY-MM-DD')",
}


def page(
    connection: Connection, scope: Scope, *, limit: int, after: LetterKey | None = None
) -> list[IndexedLetter]:
    """The newest letters, or those that come after one."""
    where, values = condition(scope, after=after)
    found = connection.execute(filled(QUERIES["letters_page"], where), {**values, "limit": limit})
    return [_indexed(row) for row in found]


def among(connection: Connection, scope: Scope, letters: Sequence[Position]) -> list[IndexedLetter]:
    """Those of these letters of one queue that are meant."""
    where, values = condition(scope)
    given = {
        "this_partition": numbers([letter.partition for letter in letters]),
        "this_offset": numbers([letter.offset for letter in letters]),
        "limit": len(letters),
    }
    here = '(l.partition, l."offset") in (select * from unnest(%(this_partition)s::integer[], %(this_offset)s::bigint[]))'
    found = connection.execute(filled(QUERIES["letters_page"], f"{where} and {here}"), {**values, **given})
    return [_indexed(row) for row in found]


def _indexed(row: tuple[Any, ...]) -> IndexedLetter:
    state, since, task = row[_FACTS:]
    return IndexedLetter(LetterFacts(*row[:_FACTS]), LetterState(state), since, task)


def count(connection: Connection, scope: Scope) -> int:
    where, values = condition(scope)
    return _number(connection.execute(filled(QUERIES["letters_count"], where), values).fetchone())


def open_count(connection: Connection, queue: str) -> int:
    """How many letters of a queue are open. Cheap."""
    return _number(connection.execute(QUERIES["letters_open"], {"queue": queue}).fetchone())


def groups(connection: Connection, scope: Scope, by: Sequence[str], *, limit: int) -> list[Group]:
    """Letters by what they have in common, the largest group first. `by` are keys of `GROUPS`."""
    where, values = condition(scope)
    query = filled(QUERIES["letters_groups"], where, ", ".join(GROUPS[name] for name in by))
    found = connection.execute(query, {**values, "limit": limit})
    return [Group(tuple(row[:-3]), *row[-3:]) for row in found]


def plan(connection: Connection, scope: Scope, ends: Ends, *, max_replays: int) -> list[PlanGroup]:
    """What a replay would make of the letters before `ends`."""
    where, values = condition(scope)
    query = filled(QUERIES["letters_plan"], where)
    found = connection.execute(query, {**values, **_ends(ends), "max_replays": max_replays})
    return [PlanGroup(*row) for row in found]


def spans(connection: Connection, scope: Scope, within: Sequence[Span], *, tolerance: int) -> list[Span]:
    """Where the letters of one queue lie, within these spans."""
    where, values = condition(scope)
    (queue,) = scope.queues
    given = {**values, **values_of(queue, within), "tolerance": tolerance}
    return [Span(*row) for row in connection.execute(filled(QUERIES["letters_spans"], where), given)]


def _ends(ends: Ends) -> dict[str, str]:
    flat = [(queue, partition, end) for queue, of in ends.items() for partition, end in of.items()]
    return {
        "end_queue": texts([queue for queue, _, _ in flat]),
        "end_partition": numbers([partition for _, partition, _ in flat]),
        "end_offset": numbers([end for _, _, end in flat]),
    }


def _number(row: tuple[Any, ...] | None) -> int:
    assert row is not None
    return int(row[0])
