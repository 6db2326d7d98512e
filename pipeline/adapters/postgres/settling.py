"""Settlements on a connection: one statement for a batch, which is its own transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import psycopg

from pipeline.adapters.postgres.arrays import micros, numbers, texts
from pipeline.adapters.postgres.claiming import read_rows
from pipeline.adapters.postgres.letter_writing import put_letters
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection
from pipeline.core.claims import Row, Settled, Settlement
from pipeline.core.job import EPOCH_LIMIT
from pipeline.core.letter_facts import LetterFacts
from pipeline.core.outcome import Failure
from pipeline.core.state import JobState
from pipeline.core.story import attempt_outcome

__all__ = ["settle"]

log = logging.getLogger("pipeline.store")

_COMPLETED: Final = QUERIES["settle_completed"]
_ANY: Final = QUERIES["settle_any"]
_NO_FAILURE: Final = Failure("", "")
_DONE: Final = JobState.COMPLETED  # asked for every job, and a member of an enum takes long to find
_FIRST: Final = Settled(True, 1)  # the answer to nearly all


def settle(connection: Connection, worker: str, settlements: Sequence[Settlement]) -> list[Settled]:
    """Settle each as if they came one after the other; letters of the dead go to their index in the same transaction."""
    if all(settlement.letter is None for settlement in settlements):
        return _settle(connection, worker, settlements)
    with connection.transaction():
        settled = _settle(connection, worker, settlements)
        ended = zip(settlements, settled, strict=True)
        _index(connection, [s.letter for s, answer in ended if answer.accepted and s.letter is not None])
    return settled


def _index(connection: Connection, letters: Sequence[LetterFacts]) -> None:
    """The index can be rebuilt, so nothing about it may keep a job from being settled."""
    try:
        with connection.transaction():
            put_letters(connection, letters)
    except (psycopg.DataError, psycopg.IntegrityError):
        log.exception("letters not indexed", extra={"action": "letters_not_indexed", "letters": len(letters)})


def _settle(connection: Connection, worker: str, settlements: Sequence[Settlement]) -> list[Settled]:
    if len({settlement[0] for settlement in settlements}) == len(settlements):
        return _settle_distinct(connection, worker, settlements)
    with connection.transaction():
        return _settle_repeated(connection, worker, settlements)


def _settle_repeated(connection: Connection, worker: str, settlements: Sequence[Settlement]) -> list[Settled]:
    """In rounds of distinct jobs: a statement would settle a job that it meets twice by either of the two."""
    answers: dict[int, Settled] = {}
    while len(answers) < len(settlements):
        left = [index for index in range(len(settlements)) if index not in answers]
        now = list({settlements[index].job_id: index for index in reversed(left)}.values())
        settled = _settle_distinct(connection, worker, [settlements[index] for index in now])
        answers.update(zip(now, settled, strict=True))
    return [answers[index] for index in range(len(settlements))]


def _settle_distinct(connection: Connection, worker: str, settlements: Sequence[Settlement]) -> list[Settled]:
    if not settlements:
        return []
    ordered = sorted(settlements, key=itemgetter(0))
    only_completed = all(settlement[2] is _DONE for settlement in ordered)
    query, arrays = (_COMPLETED, _arrays(ordered)) if only_completed else (_ANY, _all_arrays(ordered))
    moved = connection.execute(query, {"worker": worker, **arrays}, prepare=True, binary=True).fetchall()
    if len(moved) == len(settlements):
        return [_FIRST if settlement[1] == 1 else Settled(True, settlement[1]) for settlement in settlements]
    return _explain(connection, worker, settlements, accepted={row[0] for row in moved})


def _arrays(ordered: Sequence[Settlement]) -> dict[str, str]:
    ids, tokens, _, attempts, hops, started, finished, *_ = zip(*ordered, strict=True)
    return {
        "job_id": texts(ids),
        "token": numbers(tokens),
        "attempt": numbers(attempts),
        "hop": numbers(hops),
        "started_at": micros(started),
        "finished_at": micros(finished),
    }


def _all_arrays(ordered: Sequence[Settlement]) -> dict[str, str]:
    failures = [settlement.failure or _NO_FAILURE for settlement in ordered]
    return {
        **_arrays(ordered),
        "row_attempt": numbers([settlement.row_attempt for settlement in ordered]),
        "state": texts([settlement.state for settlement in ordered]),
        # A time beyond what Postgres knows must not keep the whole batch from being settled.
        "due_at": micros([min(settlement.due_at, EPOCH_LIMIT) for settlement in ordered]),
        "crashed": numbers([int(settlement.crashed) for settlement in ordered]),
        "reason": texts([settlement.reason for settlement in ordered]),
        "outcome": texts([attempt_outcome(settlement) or "" for settlement in ordered]),
        "error_class": texts([failure.error_class for failure in failures]),
        "message": texts([failure.message for failure in failures]),
        "stack": texts([failure.stack for failure in failures]),
    }


def _explain(
    connection: Connection, worker: str, settlements: Sequence[Settlement], *, accepted: set[str]
) -> list[Settled]:
    missing = [settlement.job_id for settlement in settlements if settlement.job_id not in accepted]
    rows = read_rows(connection, missing)
    return [
        Settled(True, settlement.token)
        if settlement.job_id in accepted
        else _verdict(rows.get(settlement.job_id), settlement, worker)
        for settlement in settlements
    ]


def _verdict(found: tuple[Row, bool] | None, settlement: Settlement, worker: str) -> Settled:
    """Accepted when this very settlement was carried out before, and its answer was lost on the way."""
    if found is None:
        return Settled(False, 0)
    row, _ = found
    wanted = (settlement.state, settlement.hop, settlement.token, worker)
    return Settled(row[:4] == wanted, row.token)
