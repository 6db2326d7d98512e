"""Keeps the index of dead letters complete: the DLQ topics are the truth, and what they have the index gets.

Workers put their letters into the index as they settle them. What is missing then was written by others, or by workers that
died between the letter and its settlement. To look for it is cheap: the index is asked for gaps up to the topic's end, and
only those are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from pipeline.core.desk import Span
from pipeline.core.letters import facts_of, read_letter
from pipeline.runtime.dlq_ports import LetterIndex, LetterTopics

__all__ = ["Caught", "Indexer", "in_batches"]

BATCH_RECORDS = 1000
READ_ACROSS = 1000  # offsets between two gaps that are read rather than sought over

T = TypeVar("T")
OnRead = Callable[[int, int], None]  # records read, records to read


class Caught(NamedTuple):
    """What came of catching up with the topic of a queue: its partitions as they are, and what changed in the index."""

    spans: Sequence[Span]
    added: int = 0
    expired: int = 0
    forgotten: int = 0

    @property
    def ends(self) -> Mapping[int, int]:
        return {span.partition: span.stop for span in self.spans}

    @property
    def starts(self) -> Mapping[int, int]:
        return {span.partition: span.start for span in self.spans}


class Indexer:
    """`topics` are the DLQ topics by their queues. Methods raise what topics and index raise."""

    def __init__(self, *, index: LetterIndex, source: LetterTopics, topics: Mapping[str, str]) -> None:
        self._index = index
        self._source = source
        self._topics = topics

    def catch_up(self, queue: str, *, on_read: OnRead = lambda _done, _all: None) -> Caught:
        """Put into the index what the topic has and the index lacks."""
        now = {span.partition: span for span in self._source.bounds(self._topics[queue])}
        known = self._index.known_spans(queue)
        # A topic that ends before the place up to which it was read was deleted and made anew.
        anew = [span for number, span in now.items() if number in known and span.stop < known[number].stop]
        known = {number: span for number, span in known.items() if now.get(number) not in anew}
        beyond = [Span(span.partition, span.stop, 2**62) for span in anew]
        forgotten = self._index.forget(queue, beyond) if beyond else 0
        missing = self._missing(queue, now, known, anew)
        added = self._read(queue, missing, refresh=False, on_read=on_read)
        expired = self._expire(queue, now, known)
        if now != known or anew:
            self._index.advance(queue, list(now.values()))
        return Caught(list(now.values()), added, expired, forgotten)

    def rebuild(self, queue: str, *, on_read: OnRead = lambda _done, _all: None) -> Caught:
        """Read the whole topic, and correct the index wherever it differs."""
        now = self._source.bounds(self._topics[queue])
        forgotten = self._index.forget(queue, [Span(span.partition, span.stop, 2**62) for span in now])
        filled = [span for span in now if span.start < span.stop]
        self._read(queue, filled, refresh=True, on_read=on_read)
        expired = self._expire(queue, {span.partition: span for span in now}, {})
        self._index.advance(queue, now)
        return Caught(now, sum(span.stop - span.start for span in filled), expired, forgotten)

    def _missing(
        self, queue: str, now: Mapping[int, Span], known: Mapping[int, Span], anew: Sequence[Span]
    ) -> list[Span]:
        unread = [
            Span(number, max(span.start, known[number].stop if number in known else 0), span.stop)
            for number, span in now.items()
            if span not in anew
        ]
        unread = [span for span in unread if span.start < span.stop]
        gaps = self._index.gaps(queue, unread) if unread else []
        return [*_joined(gaps), *(span for span in anew if span.start < span.stop)]

    def _expire(self, queue: str, now: Mapping[int, Span], known: Mapping[int, Span]) -> int:
        seen = {number: known[number].start if number in known else 0 for number in now}
        gone = [Span(number, seen[number], span.start) for number, span in now.items()]
        gone = [span for span in gone if span.start < span.stop]
        return self._index.expire(queue, gone) if gone else 0

    def _read(self, queue: str, spans: Sequence[Span], *, refresh: bool, on_read: OnRead) -> int:
        total, done, added = sum(span.stop - span.start for span in spans), 0, 0
        for batch in in_batches(self._source.read(self._topics[queue], spans), BATCH_RECORDS):
            facts = [facts_of(read_letter(record, queue=queue)) for record in batch]
            added += self._index.put(facts, refresh=refresh)
            done += len(batch)
            on_read(done, total)
        return added


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many, the last one of what is left."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _joined(gaps: Sequence[Span]) -> list[Span]:
    """Gaps that lie close together as one: what lies between is in the index, and stays as it is."""
    joined: list[Span] = []
    for gap in gaps:
        if joined and joined[-1].partition == gap.partition and gap.start - joined[-1].stop <= READ_ACROSS:
            joined[-1] = joined[-1]._replace(stop=gap.stop)
        else:
            joined.append(gap)
    return joined
