"""A selection of letters as the condition of a statement."""

from __future__ import annotations

from math import isfinite
from typing import Any

from pipeline.adapters.postgres.arrays import numbers, texts
from pipeline.core.desk import LetterKey, Scope
from pipeline.core.selection import Position, Selection

__all__ = ["condition", "filled"]

_ANY_OF = {
    "job_types": "l.job_type = any(%(job_types)s::text[])",
    "tenants": "l.tenant = any(%(tenants)s::text[])",
    "reasons": "l.reason = any(%(reasons)s::text[])",
    "schemas": "l.schema = any(%(schemas)s::text[])",
    "errors": "(l.error_class = any(%(errors)s::text[]) or split_part(l.error_class, '.', -1) = any(%(errors)s::text[]))",
}
_REFERENCES = (
    '(l.job_id = any(%(ids)s::uuid[]) or (l.partition, l."offset") in'
    " (select * from unnest(%(at_partition)s::integer[], %(at_offset)s::bigint[])))"
)
_AFTER = (
    '(l.dead_at, l.queue, l.partition, l."offset") <'
    " (to_timestamp(%(after_dead_at)s), %(after_queue)s, %(after_partition)s, %(after_offset)s)"
)


def condition(scope: Scope, *, after: LetterKey | None = None) -> tuple[str, dict[str, Any]]:
    """The condition on `letters as l`, and the values that it names."""
    selection = scope.selection
    clauses = ["l.queue = any(%(queues)s::text[])", "l.state = any(%(states)s::text[])"]
    values: dict[str, Any] = {"queues": texts(list(scope.queues)), "states": texts(sorted(scope.states))}
    for name, clause in _ANY_OF.items():
        if given := getattr(selection, name):
            clauses.append(clause)
            values[name] = texts(sorted(given))
    if selection.references:
        clauses.append(_REFERENCES)
        values |= _references(selection)
    for name, clause in _times(selection):
        clauses.append(clause)
        values[name] = getattr(selection, name)
    if selection.search:
        clauses.append("position(lower(%(search)s) in lower(l.message)) > 0")
        values["search"] = selection.search
    if after is not None:
        clauses.append(_AFTER)
        values |= {f"after_{name}": value for name, value in after._asdict().items()}
    return " and ".join(clauses), values


def filled(query: bytes, where: str, groups: str = "") -> bytes:
    """A statement of letters.sql with its gaps filled."""
    return query.replace(b"{where}", where.encode()).replace(b"{groups}", groups.encode())


def _references(selection: Selection) -> dict[str, Any]:
    positions = [each for each in selection.references if isinstance(each, Position)]
    return {
        "ids": texts([each for each in selection.references if isinstance(each, str)]),
        "at_partition": numbers([each.partition for each in positions]),
        "at_offset": numbers([each.offset for each in positions]),
    }


def _times(selection: Selection) -> list[tuple[str, str]]:
    given = []
    if selection.since > 0:
        given.append(("since", "l.dead_at >= to_timestamp(%(since)s)"))
    if isfinite(selection.until):
        given.append(("until", "l.dead_at < to_timestamp(%(until)s)"))
    return given
