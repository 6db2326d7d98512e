"""Letters of the index as rows of a table, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cli.text import clip, iso, one_line, printable, table, when
from pipeline.core.desk import IndexedLetter
from pipeline.core.letter_facts import UNRESOLVED, LetterState

__all__ = ["STATES", "count_line", "letter_json", "letter_table", "letters_text", "states_of"]

STATES = [*(state.value for state in LetterState), "waiting", "all"]


def states_of(names: Sequence[str]) -> list[LetterState]:
    """What `--state` means; none given means those that wait."""
    found: set[LetterState] = set()
    for name in names or ("waiting",):
        if name == "all":
            found.update(LetterState)
        elif name == "waiting":
            found.update(UNRESOLVED)
        else:
            found.add(LetterState(name))
    return sorted(found)


def letters_text(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def count_line(total: int, shown: int, *, filtered: bool, after: bool = False) -> str:
    """How many there are, and how many of them were shown."""
    if not total:
        return "no dead letter fits" if filtered else "no dead letters"
    if after:
        return f"the next {shown} of {letters_text(total)}"
    return letters_text(total) if shown == total else f"the newest {shown} of {letters_text(total)}"


def letter_table(letters: Sequence[IndexedLetter], *, with_queue: bool) -> list[str]:
    """The state is shown where not all of them are open."""
    head = ["LETTER", "JOB", "TYPE", "TENANT", "REASON", "ATTEMPTS", "ERROR", "MESSAGE", "DEAD SINCE"]
    rows = [_row(letter) for letter in letters]
    if with_queue:
        head.insert(0, "QUEUE")
        rows = [[printable(letter.facts.queue), *row] for letter, row in zip(letters, rows, strict=True)]
    if any(letter.state is not LetterState.OPEN for letter in letters):
        head.append("STATE")
        rows = [[*row, letter.state.value] for letter, row in zip(letters, rows, strict=True)]
    return table(head, rows)


def _row(letter: IndexedLetter) -> list[object]:
    facts = letter.facts
    return [
        str(facts.position),
        facts.job_id,
        clip(facts.job_type, 40),
        clip(facts.tenant, 30),
        clip(facts.reason, 30) or "-",
        facts.attempt,
        clip(facts.error_class, 40) or "-",
        one_line(facts.message, 60) or "-",
        when(facts.dead_at),
    ]


def letter_json(letter: IndexedLetter) -> dict[str, object]:
    """For machines. What is not there is null."""
    facts = letter.facts
    return {
        "queue": facts.queue,
        "partition": facts.partition,
        "offset": facts.offset,
        "job_id": facts.job_id,
        "type": facts.job_type,
        "tenant": facts.tenant,
        "reason": facts.reason or None,
        "attempts": facts.attempt,
        "hop": facts.hop,
        "replays": facts.replays,
        "error_class": facts.error_class or None,
        "error_message": facts.message or None,
        "schema": facts.schema or None,
        "size": facts.size,
        "dead_since": iso(facts.dead_at),
        "first_record": _record(facts.first_topic, facts.first_partition, facts.first_offset),
        "last_record": _record(facts.last_topic, facts.last_partition, facts.last_offset),
        "written_by": facts.dialect,
        "malformed": facts.malformed,
        "state": letter.state.value,
        "state_since": iso(letter.since),
        "task": letter.task or None,
    }


def _record(topic: str, partition: int, offset: int) -> dict[str, object] | None:
    return {"topic": topic, "partition": partition, "offset": offset} if topic else None
