"""Which letters are meant: what names one, and criteria that choose many."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple

from pipeline.errors import PipelineError

__all__ = ["BadReference", "Position", "Selection", "parse_reference"]

_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_POSITION = re.compile(r"(\d{1,9}):(\d{1,18})", re.ASCII)


class BadReference(PipelineError):
    """Text that names no letter. The message has the text and what is allowed."""


class Position(NamedTuple):
    """Where a letter lies in the DLQ topic of its queue."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


def parse_reference(text: str) -> str | Position:
    """What names letters: a job id, or PARTITION:OFFSET. Raises `BadReference`."""
    if _JOB_ID.fullmatch(text):
        return text.lower()
    found = _POSITION.fullmatch(text)
    if found is None:
        raise BadReference(
            f"{text[:80]!r} names no letter; allowed: a job id (UUID), or PARTITION:OFFSET such as 3:17"
        )
    return Position(int(found[1]), int(found[2]))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Those letters that fit every criterion given; an empty selection fits all.

    Within a criterion any value will do. `references` are job ids and positions, `errors` classes of the last error with
    or without their module, `schemas` names as in `pipeline.core.letter_facts`. `since` and `until` (epoch seconds, the
    latter excluded) say when the job died; `search` is part of the error's message, in any case of letters.
    """

    references: frozenset[str | Position] = frozenset()
    job_types: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()
    schemas: frozenset[str] = frozenset()
    since: float = 0.0
    until: float = inf
    search: str = ""

    def __bool__(self) -> bool:
        """Whether there is any criterion."""
        return self != Selection()

    def to_json(self) -> dict[str, Any]:
        """The criteria that there are, as JSON values."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: sorted(map(str, value)) if isinstance(value, frozenset) else value
            for name, value in given.items()
            if value != getattr(_ALL, name)
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Selection:
        """Raises `BadReference`."""
        found: dict[str, Any] = {
            name: frozenset(v) if isinstance(v, list) else v for name, v in given.items()
        }
        if "references" in found:
            found["references"] = frozenset(map(parse_reference, found["references"]))
        return cls(**found)


_ALL = Selection()
