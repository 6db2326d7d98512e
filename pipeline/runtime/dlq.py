"""The dead-letter desk: finds letters in the DLQ topics, which are the truth. Reads only; see `dlq_replay` for the rest."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from pipeline.core.job import Record
from pipeline.core.letters import Letter, matches, read_letter
from pipeline.core.selection import Position, Selection
from pipeline.core.topics import TopicNames
from pipeline.errors import ConfigError, PipelineError, UnknownQueue

__all__ = ["Desk", "LetterNotFound", "LetterSource", "Listing"]


class LetterNotFound(PipelineError):
    """No DLQ topic that was looked at has the letter."""


class LetterSource(Protocol):
    """Reads whole topics, outside any consumer group."""

    def read(self, topic: str, *, start: Mapping[int, int] | None = None) -> Iterator[Record]:
        """Every record from `start` (partition -> offset) to the ends as they are when the first one is asked for.

        Raises `TopicsMissing`, `BrokerUnavailable`.
        """
        ...


class Listing(NamedTuple):
    """Some letters, the newest first, and how many there are in all."""

    letters: list[Letter]
    total: int


class Desk:
    """Looks at the DLQ topics of `queues`. Its methods raise what the source raises."""

    def __init__(self, *, source: LetterSource, names: TopicNames, queues: Sequence[str]) -> None:
        self._source = source
        self._names = names
        self._queues = tuple(queues)

    def letters(self, selection: Selection, *, queue: str | None = None) -> Iterator[Letter]:
        """The letters that are meant, ordered within a partition. Letters that arrive meanwhile are not given.

        Raises `UnknownQueue`, and `ConfigError` for a position that could lie in several queues.
        """
        queues = self._looked_at(queue)
        if len(queues) > 1 and any(isinstance(reference, Position) for reference in selection.references):
            raise ConfigError(
                f"in which queue is PARTITION:OFFSET? There are {len(queues)}: {', '.join(queues)}"
            )
        return (letter for name in queues for letter in self._read(name) if matches(selection, letter))

    def newest(self, selection: Selection, *, limit: int, queue: str | None = None) -> Listing:
        """The last `limit` of the letters that are meant. Reads every letter, keeps no more than it gives."""
        total = 0

        def counted() -> Iterator[Letter]:
            nonlocal total
            for letter in self.letters(selection, queue=queue):
                total += 1
                yield letter

        found = heapq.nlargest(limit, counted(), key=_age)
        return Listing(found, total)

    def find(self, reference: str | Position, *, queue: str | None = None) -> list[Letter]:
        """The letters of that name, the newest first: a job that was replayed may have several.

        Raises `LetterNotFound`, and what `letters` raises.
        """
        if isinstance(reference, Position):
            found = self._at(reference, queue)
        else:
            found = list(self.letters(Selection(references=frozenset([reference])), queue=queue))
        if not found:
            topics = ", ".join(self._names.dlq(name) for name in self._looked_at(queue))
            raise LetterNotFound(f"no dead letter {reference} in {topics}")
        return sorted(found, key=_age, reverse=True)

    def _at(self, position: Position, queue: str | None) -> list[Letter]:
        queues = self._looked_at(queue)
        if len(queues) > 1:
            raise ConfigError(f"in which queue is {position}? There are {len(queues)}: {', '.join(queues)}")
        start = {position.partition: position.offset}
        with closing(self._read(queues[0], start)) as letters:
            for letter in letters:
                if letter.position == position:
                    return [letter]
        return []

    def _read(self, queue: str, start: Mapping[int, int] | None = None) -> Generator[Letter]:
        for record in self._source.read(self._names.dlq(queue), start=start):
            yield read_letter(record, queue=queue)

    def _looked_at(self, queue: str | None) -> tuple[str, ...]:
        if queue is None:
            return self._queues
        if queue not in self._queues:
            raise UnknownQueue(
                f"queue is {queue!r}; allowed by the setting queues: {', '.join(self._queues)}"
            )
        return (queue,)


def _age(letter: Letter) -> tuple[float, Position]:
    return letter.dead_at, letter.position
