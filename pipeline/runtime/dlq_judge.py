"""What a replay does with letters that it has locked: send them, or why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from pipeline.core.desk import Candidate, Outcome
from pipeline.core.letter_facts import LetterState
from pipeline.core.letters import Letter, Standing, standing

__all__ = ["Death", "Judged", "judged"]

Death = tuple[str, int]  # of a job, by its id, in a hop

_RESOLVED = {
    Standing.COMPLETED: LetterState.COMPLETED,
    Standing.CANCELLED: LetterState.CANCELLED,
    Standing.REPLAYED: LetterState.REPLAYED,
}


class Judged(NamedTuple):
    """`due` are to be sent, `moved` are dealt with, and the rest is left as it is.

    `counts` has why letters are not sent: `completed`, `cancelled`, `replayed` (their jobs went on since), `copies`,
    `parked` (replayed too often), `unsettled` (their worker has yet to record that the job is dead), `untargeted`.
    `deaths` are the deaths that these letters are of.
    """

    due: list[tuple[Candidate, Letter]]
    moved: list[Outcome]
    counts: Counter[str]
    deaths: set[Death]


def judged(
    candidates: Sequence[tuple[Candidate, Letter]],
    *,
    max_replays: int,
    has_target: Callable[[Letter], bool],
    before: Collection[Death] = (),
) -> Judged:
    """Judge each, in order. A letter is written twice when its worker dies before it has settled: one of the two is sent.

    `before` are the deaths of letters that were judged before, and may not be on record yet.
    """
    found = Judged([], [], Counter(), set())
    seen = found.deaths
    for candidate, letter in candidates:
        key = (letter.job.job_id, candidate.hop)
        is_copy = candidate.copy or key in seen or key in before
        outcome, counted = _one(candidate, max_replays=max_replays, is_copy=is_copy)
        seen.add(key)
        if outcome is not None:
            found.moved.append(outcome)
        elif not counted and has_target(letter):
            found.due.append((candidate, letter))
        elif not counted:
            counted = "untargeted"
        if counted:
            found.counts[counted] += 1
    return found


def _one(candidate: Candidate, *, max_replays: int, is_copy: bool) -> tuple[Outcome | None, str]:
    """What becomes of a letter that is not sent, and what it counts as; nothing of both for one that is."""
    at = candidate.position
    if is_copy:
        return Outcome(at, LetterState.COPY, "another letter of the same death"), "copies"
    found = standing(candidate.hop, candidate.row)
    if found in _RESOLVED:
        resolved = _RESOLVED[found]
        return Outcome(at, resolved, f"its job: {found}"), resolved.value
    if found is Standing.UNSETTLED:
        return None, "unsettled"
    if candidate.replays >= max_replays and candidate.state is not LetterState.PARKED:
        return Outcome(at, LetterState.PARKED, f"replayed {candidate.replays} times"), "parked"
    return None, ""
