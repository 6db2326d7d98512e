"""What the index of dead letters gets of a letter that this worker has written."""

from __future__ import annotations

from pipeline.core.job import Record
from pipeline.core.letter_facts import LetterFacts
from pipeline.core.letters import facts_of, read_letter
from pipeline.runtime.next_records import Unsettled

__all__ = ["letter_facts"]


def letter_facts(item: Unsettled) -> LetterFacts | None:
    """Facts of the letter that the broker has acknowledged, as whoever reads the topic would find them."""
    if item.letter is None:
        return None
    written, place = item.letter
    record = Record(*place, written.key, written.value, written.headers, 0.0)
    return facts_of(read_letter(record, queue=item.run.delivery.job.queue))
