"""What the index keeps of a letter: its facts, which follow from the record alone, and the states that it goes through.

A worker that writes a letter and a reader of the DLQ topic come to the same facts, so that an index can be rebuilt.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pipeline.core.selection import Position
from pipeline.core.writer_schemas import WriterRef

__all__ = ["UNRESOLVED", "LetterFacts", "LetterState", "schema_ref", "schema_reference"]


class LetterState(StrEnum):
    """Where a letter is. Those of `UNRESOLVED` still wait for an operator."""

    OPEN = "open"
    REPLAYING = "replaying"  # a replay has it in hand
    REPLAYED = "replayed"
    PARKED = "parked"  # set aside: not replayed unless asked for
    DISCARDED = "discarded"
    COMPLETED = "completed"  # its job ended in another way
    CANCELLED = "cancelled"
    COPY = "copy"  # another letter of the same death was replayed
    EXPIRED = "expired"  # its record has left the topic


UNRESOLVED = frozenset({LetterState.OPEN, LetterState.REPLAYING, LetterState.PARKED, LetterState.EXPIRED})


class LetterFacts(NamedTuple):
    """`origin` is empty for letters of ours. `malformed` says that the record carries no job that could run.

    Texts are bounded, and such that Postgres takes them; numbers that a letter does not tell are -1.
    """

    queue: str
    partition: int
    offset: int
    job_id: str
    job_type: str
    tenant: str
    priority: str
    dialect: str
    origin: str
    malformed: bool
    hop: int
    attempt: int
    replays: int
    reason: str
    error_class: str
    message: str
    schema: str
    first_topic: str
    first_partition: int
    first_offset: int
    last_topic: str
    last_partition: int
    last_offset: int
    size: int
    dead_at: float

    @property
    def position(self) -> Position:
        return Position(self.partition, self.offset)


_PREFIXES = {0: ("id:", 5), 1: ("guid:", 17)}


def schema_reference(value: bytes, schema_id: bytes = b"") -> str:
    """How a payload names the schema it was written with: a fingerprint in hex, `id:7`, `guid:...`; empty if not at all."""
    if not schema_id and value[:2] == b"\xc3\x01":
        return value[2:10].hex() if len(value) >= 10 else ""
    named = schema_id or value
    kind, size = _PREFIXES.get(named[0] if named else -1, ("", 0))
    if not size or len(named) < size:
        return ""
    return f"{kind}{int.from_bytes(named[1:5], 'big') if kind == 'id:' else named[1:17].hex()}"


def schema_ref(reference: str) -> WriterRef:
    """What `schema_reference` gave, to be looked up."""
    kind, colon, rest = reference.partition(":")
    if not colon:
        return WriterRef("fingerprint", bytes.fromhex(reference))
    if kind == "id":
        return WriterRef("id", int(rest).to_bytes(4, "big"))
    return WriterRef("guid", bytes.fromhex(rest))
