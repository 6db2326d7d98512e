"""Letters of others that a process had in hand when it died: were they sent?

No rule keeps their consumers from working twice. So before such letters are sent it is remembered where their topics end,
and each record says which letter it comes from: those that are found behind that place were sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from pipeline.core.desk import Ends, InDoubt, Outcome, Span, Step, Task
from pipeline.core.job import Source
from pipeline.core.letter_facts import LetterState
from pipeline.runtime.dlq_pace import Pace
from pipeline.runtime.dlq_ports import LetterIndex, LetterTopics
from pipeline.runtime.dlq_records import LETTER, letter_mark

__all__ = ["Doubts"]

# What a killed process had sent may still be on its way to the broker, through the buffers of both machines.
UNDER_WAY = 3.0


class Doubts:
    """Raises what topics and index raise."""

    def __init__(self, *, index: LetterIndex, source: LetterTopics) -> None:
        self._index = index
        self._source = source
        self._foreseen: Ends = {}
        self._kept: Ends = {}

    def foresee(self, task: int, targets: Collection[str]) -> None:
        """Remember where these topics end, before letters are sent there."""
        ends = {topic: self._ends(topic) for topic in targets if topic}
        self._foreseen = {**ends, **self._kept}
        self._index.doubt(task, self._foreseen)

    def keep(self) -> None:
        """A letter stays in hand: what was remembered last is needed until it has been found."""
        self._kept = self._foreseen

    def settle(self, *, pace: Pace, also: int) -> bool:
        """Find out what became of letters that processes had in hand which died; False when there are none.

        `also` is a task that is held already.
        """
        any_found = False
        for number in sorted({*self._index.stranded(), also}):
            if number != also and not self._index.hold(number):
                continue
            if in_hand := self._index.in_doubt(number):
                any_found = True
                (task,) = self._index.tasks(task=number)
                self._settle(task, in_hand, pace)
            if number != also:
                self._index.release(number)
        return any_found

    def _settle(self, task: Task, in_hand: Collection[InDoubt], pace: Pace) -> None:
        pace.rest(UNDER_WAY - min(letter.age for letter in in_hand))
        sent = self._sent_since(task.in_doubt)
        outcomes: dict[str, list[Outcome]] = defaultdict(list)
        counts = dict(task.counts)
        for queue, position, _, _ in in_hand:
            place = sent.get(letter_mark(queue, *position))
            counts["sent"] = counts.get("sent", 0) + (place is not None)
            outcomes[queue].append(
                Outcome(position, LetterState.REPLAYED, "found in its topic", place)
                if place is not None
                else Outcome(position, LetterState.OPEN, "not found in its topic")
            )
        for queue, found in outcomes.items():
            self._index.settle(task.id, queue, Step(found, task.cursor, counts))

    def _sent_since(self, ends: Ends) -> Mapping[bytes, Source]:
        found: dict[bytes, Source] = {}
        for topic, before in ends.items():
            now = self._ends(topic)
            spans = [Span(number, before.get(number, 0), end) for number, end in now.items()]
            for record in self._source.read(topic, [span for span in spans if span.start < span.stop]):
                found.update(
                    (value, record.source) for name, value in record.headers if name == LETTER and value
                )
        return found

    def _ends(self, topic: str) -> dict[int, int]:
        return {span.partition: span.stop for span in self._source.bounds(topic)}
