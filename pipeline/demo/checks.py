"""What the demo promises, as checks over its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.core.state import JobState
from pipeline.demo.work import Plan

__all__ = ["Check", "Evidence", "check_all"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found when all was quiet. `starts` has job id, attempt, token and process of each start of a handler."""

    plan: Plan
    acknowledged: Sequence[str]
    refused: int
    counts: Mapping[JobState, int]
    dead_before_replay: int
    sent: Sequence[str]
    invoices: Sequence[str]
    starts: Sequence[Sequence[str]]
    killed: str
    lag: int
    letters: int
    exit_codes: Sequence[int]


class Check(NamedTuple):
    """One line of the table."""

    promise: str
    expected: str
    found: str
    holds: bool


def check_all(found: Evidence) -> list[Check]:
    """Every promise, in the order in which a job meets them."""
    plan = found.plan
    ids = set(found.acknowledged)
    completed = found.counts.get(JobState.COMPLETED, 0)
    dead = found.counts.get(JobState.DEAD, 0)
    return [
        _equal("records acknowledged by the broker", plan.records, len(found.acknowledged)),
        _equal("distinct jobs among them", plan.jobs, len(ids)),
        _equal("jobs refused at publish", 0, found.refused),
        _equal("dead after all attempts, before the replay", plan.always, found.dead_before_replay),
        _equal("dead letters written", plan.always, found.letters),
        _equal("published = completed + dead", plan.jobs, completed + dead),
        _equal("completed after the replay", plan.jobs, completed),
        _equal("e-mails sent, each exactly once", plan.each, len(found.sent)),
        _equal("invoices rendered, each at least once", plan.each, len(set(found.invoices))),
        _equal("effects of jobs that were never published", 0, len({*found.sent, *found.invoices} - ids)),
        _started_once(found),
        *_attempts(found),
        _equal("records behind the committed offsets", 0, found.lag),
        _equal("workers that stopped in order", 1, sum(code == 0 for code in found.exit_codes)),
    ]


def _equal(promise: str, expected: int, found: int) -> Check:
    return Check(promise, str(expected), str(found), expected == found)


def _started_once(found: Evidence) -> Check:
    """Only what the killed worker had in its hands may have started once more for the same attempt.

    Jobs that went through all attempts are left out: after their replay they begin with attempt 1 again.
    """
    spent = {job_id for job_id, attempt, *_ in found.starts if attempt == "3"}
    starts: dict[tuple[str, str], list[str]] = {}
    for job_id, attempt, token, process in found.starts:
        if job_id not in spent:
            starts.setdefault((job_id, attempt), []).append(f"token {token} in {process}")
    again = {run: started for run, started in starts.items() if len(started) > 1}
    odd = {run: started for run, started in again.items() if not _excused(started, found.killed)}
    text = f"{len(again) - len(odd)}, and of others {len(odd)}"
    if odd:
        text += f": {list(odd.items())[:3]}"
    return Check("attempts started again", "only the killed worker's", text, not odd)


def _excused(started: Sequence[str], killed: str) -> bool:
    return len(started) == 2 and any(start.endswith(f" in {killed}") for start in started)


def _attempts(found: Evidence) -> list[Check]:
    """Failing jobs ran as often as their policy says, the others once."""
    attempts: dict[str, set[str]] = {}
    for job_id, attempt, *_ in found.starts:
        attempts.setdefault(job_id, set()).add(attempt)
    second = sum("2" in seen for seen in attempts.values())
    third = sum("3" in seen for seen in attempts.values())
    return [
        _equal("jobs that needed a second attempt", found.plan.once + found.plan.always, second),
        _equal("jobs that needed all three", found.plan.always, third),
    ]
