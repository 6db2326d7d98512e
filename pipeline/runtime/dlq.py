"""The dead-letter desk: finds letters by their index, and reads them where they lie, in the DLQ topics.

Where Postgres is away the topics themselves can be searched: slowly, and without what was done with the letters since.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from pipeline.core.desk import Ends, IndexedLetter, Scope, Span
from pipeline.core.letter_facts import LetterState
from pipeline.core.letters import Letter, matches, read_letter
from pipeline.core.selection import Position, Selection
from pipeline.errors import ConfigError, PipelineError, UnknownQueue
from pipeline.runtime.dlq_index import Caught, Indexer, OnRead, in_batches
from pipeline.runtime.dlq_ports import LetterIndex, LetterTopics

__all__ = ["Desk", "Found", "LetterNotFound"]

MOST_LETTERS_OF_A_JOB = 100
EXPORT_BATCH = 500
READ_ACROSS = 1000


class LetterNotFound(PipelineError):
    """No DLQ topic that was looked at has the letter."""


class Found(NamedTuple):
    """A letter as it lies in its topic, and what the index has of it: None where it was not asked."""

    letter: Letter
    known: IndexedLetter | None


class Desk:
    """`topics` are the DLQ topics by their queues: of our queues, and of others under their own names.

    Methods raise what topics and index raise, and `UnknownQueue`.
    """

    def __init__(self, *, index: LetterIndex, source: LetterTopics, topics: Mapping[str, str]) -> None:
        self.index = index
        self._source = source
        self._topics = topics
        self._indexer = Indexer(index=index, source=source, topics=topics)

    def queues(self, queue: str | None) -> list[str]:
        """That one, or all. Raises `UnknownQueue`."""
        if queue is None:
            return list(self._topics)
        if queue not in self._topics:
            raise UnknownQueue(f"queue is {queue!r}; allowed by the settings: {', '.join(self._topics)}")
        return [queue]

    # --- the index

    def catch_up(self, queue: str | None = None, *, on_read: OnRead | None = None) -> dict[str, Caught]:
        """Put into the index what it lacks."""
        told = {} if on_read is None else {"on_read": on_read}
        return {name: self._indexer.catch_up(name, **told) for name in self.queues(queue)}

    def rebuild(self, queue: str | None = None, *, on_read: OnRead | None = None) -> dict[str, Caught]:
        """Read whole topics, and correct the index wherever it differs."""
        told = {} if on_read is None else {"on_read": on_read}
        return {name: self._indexer.rebuild(name, **told) for name in self.queues(queue)}

    def scope(
        self, selection: Selection, *, queue: str | None, states: Sequence[LetterState] = tuple(LetterState)
    ) -> Scope:
        """Raises `ConfigError` for a position that could lie in several queues."""
        queues = self.queues(queue)
        self._refuse_ambiguous(selection, queues)
        return Scope(selection, queues, states)

    def missing(self, selection: Selection, *, queue: str | None) -> set[str | Position]:
        """References that name no letter in the index."""
        missing = set(selection.references)
        for reference in selection.references:
            scope = self.scope(Selection(references=frozenset([reference])), queue=queue)
            if self.index.page(scope, limit=1):
                missing.discard(reference)
        return missing

    # --- letters themselves

    def find(self, reference: str | Position, *, queue: str | None = None) -> list[Found]:
        """The letters of that name, the newest first: a job that was replayed may have several.

        Raises `LetterNotFound`, and what `scope` raises.
        """
        scope = self.scope(Selection(references=frozenset([reference])), queue=queue)
        known = self.index.page(scope, limit=MOST_LETTERS_OF_A_JOB)
        found = {(each.letter.job.queue, each.letter.position): each for each in self.read(known)}
        ordered = [found.get((each.facts.queue, each.facts.position)) for each in known]
        return [each for each in ordered if each is not None] or self._not_found(reference, queue)

    def read(self, known: Sequence[IndexedLetter]) -> Iterator[Found]:
        """The letters themselves, in the order of their topics; those that are gone are left out."""
        by_queue: dict[str, dict[Position, IndexedLetter]] = defaultdict(dict)
        for each in known:
            by_queue[each.facts.queue][each.facts.position] = each
        for queue, wanted in by_queue.items():
            spans = [Span(at.partition, at.offset, at.offset + 1) for at in sorted(wanted)]
            with closing(self._source.read(self._topics[queue], spans)) as records:
                for record in records:
                    letter = read_letter(record, queue=queue)
                    yield Found(letter, wanted[letter.position])

    def every(self, scope: Scope, ends: Ends) -> Iterator[Found]:
        """All letters of a scope that lie before `ends`, in the order of their topics; for any number of them."""
        for queue in scope.queues:
            here = scope._replace(queues=[queue])
            within = [Span(number, 0, end) for number, end in ends[queue].items()]
            spans = self.index.spans(here, within, tolerance=READ_ACROSS)
            with closing(self._source.read(self._topics[queue], spans)) as records:
                for batch in in_batches(
                    (read_letter(record, queue=queue) for record in records), EXPORT_BATCH
                ):
                    meant = self.index.among(here, [letter.position for letter in batch])
                    known = {each.facts.position: each for each in meant}
                    yield from (Found(each, known[each.position]) for each in batch if each.position in known)

    # --- without the index

    def scan(self, selection: Selection, *, queue: str | None = None) -> Iterator[Letter]:
        """The letters that are meant, from the topics alone; ordered within a partition."""
        queues = self.queues(queue)
        self._refuse_ambiguous(selection, queues)
        for name in queues:
            spans = [span for span in self._source.bounds(self._topics[name]) if span.start < span.stop]
            for record in self._source.read(self._topics[name], spans):
                letter = read_letter(record, queue=name)
                if matches(selection, letter):
                    yield letter

    def scan_newest(
        self, selection: Selection, *, limit: int, queue: str | None = None
    ) -> tuple[list[Letter], int]:
        """The last `limit` of the letters that are meant, the newest first, and how many there are. Keeps no more."""
        total = 0

        def counted() -> Iterator[Letter]:
            nonlocal total
            for letter in self.scan(selection, queue=queue):
                total += 1
                yield letter

        return heapq.nlargest(limit, counted(), key=_age), total

    def scan_for(self, reference: str | Position, *, queue: str | None = None) -> list[Found]:
        """The same as `find`."""
        found = list(self.scan(Selection(references=frozenset([reference])), queue=queue))
        ordered = sorted(found, key=_age, reverse=True)
        return [Found(letter, None) for letter in ordered] or self._not_found(reference, queue)

    # --- what is refused

    def _not_found(self, reference: str | Position, queue: str | None) -> list[Found]:
        topics = ", ".join(self._topics[name] for name in self.queues(queue))
        raise LetterNotFound(f"no dead letter {reference} in {topics}")

    def _refuse_ambiguous(self, selection: Selection, queues: Sequence[str]) -> None:
        for reference in selection.references:
            if len(queues) > 1 and isinstance(reference, Position):
                raise ConfigError(
                    f"in which queue is {reference}? There are {len(queues)}: {', '.join(queues)}"
                )


def _age(letter: Letter) -> tuple[float, Position]:
    return letter.dead_at, letter.position
