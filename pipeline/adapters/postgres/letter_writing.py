"""Letters into their index, on a connection: as a worker settles them, and as they are read from the topic."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from pipeline.adapters.postgres.arrays import numbers, texts
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection
from pipeline.core.desk import Span
from pipeline.core.letter_facts import LetterFacts

__all__ = ["advance", "expire", "forget", "gaps", "known_spans", "put_letters", "values_of"]

_NUMBERS = frozenset(
    {
        "partition",
        "offset",
        "hop",
        "attempt",
        "replays",
        "first_partition",
        "first_offset",
        "last_partition",
        "last_offset",
        "size",
        "dead_at",
    }
)


def put_letters(connection: Connection, letters: Sequence[LetterFacts], *, refresh: bool = False) -> int:
    """Put letters into the index; give how many rows were written. None may be given twice."""
    if not letters:
        return 0
    # In one order, as elsewhere: whoever locks rows in one order cannot deadlock.
    columns = zip(*sorted(letters, key=attrgetter("queue", "partition", "offset")), strict=True)
    values: dict[str, object] = {"refresh": refresh}
    for name, column in zip(LetterFacts._fields, columns, strict=True):
        if name == "malformed":
            values[name] = texts(["t" if each else "f" for each in column])
        else:
            values[name] = numbers(column) if name in _NUMBERS else texts(column)
    return connection.execute(QUERIES["letters_put"], values, prepare=True).rowcount


def known_spans(connection: Connection, queue: str) -> dict[int, Span]:
    """Of each partition, where it began when it was last looked at, and up to where the index is complete."""
    found = connection.execute(QUERIES["letters_positions"], {"queue": queue})
    return {partition: Span(partition, begin, complete_to) for partition, begin, complete_to in found}


def gaps(connection: Connection, queue: str, spans: Sequence[Span]) -> list[Span]:
    """What the index lacks of these spans."""
    return [Span(*row) for row in connection.execute(QUERIES["letters_gaps"], values_of(queue, spans))]


def advance(connection: Connection, queue: str, spans: Sequence[Span]) -> None:
    """Remember these as `known_spans`."""
    connection.execute(QUERIES["letters_advance"], values_of(queue, spans))


def expire(connection: Connection, queue: str, spans: Sequence[Span]) -> int:
    """Mark letters that wait where the topic has nothing any more; give how many."""
    return connection.execute(QUERIES["letters_expire"], values_of(queue, spans)).rowcount


def forget(connection: Connection, queue: str, spans: Sequence[Span]) -> int:
    """Delete what a topic that was made anew does not have; give how many."""
    return connection.execute(QUERIES["letters_forget"], values_of(queue, spans)).rowcount


def values_of(queue: str, spans: Sequence[Span]) -> dict[str, object]:
    """Spans as the values of a statement."""
    return {
        "queue": queue,
        "partition": numbers([span.partition for span in spans]),
        "start": numbers([span.start for span in spans]),
        "stop": numbers([span.stop for span in spans]),
    }
