"""Claims on a connection: one statement for all, and a second one only when some were not granted.

The statement grants by the rule in SQL. The rest is judged in Python, by the rule itself, from the rows that stand in
the way. Asking for those in the same statement made it quadratic in the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from pipeline.adapters.postgres.arrays import micros, numbers, texts
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection
from pipeline.core.claims import Claim, ClaimRequest, Row, Verdict, judge, refusal
from pipeline.core.job import Source
from pipeline.core.state import JobState

__all__ = ["claim", "read_rows"]

_CLAIM: Final = QUERIES["claim"]
_ROWS: Final = QUERIES["rows"]
_FIRST: Final = Claim(Verdict.CLAIMED, 1)
_job_id: Final = itemgetter(0)
_HELD: Final = Claim(Verdict.HELD)


def claim(connection: Connection, worker: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
    """Judge each request as if they came one after the other."""
    if not requests:
        return []
    if len({request[0] for request in requests}) == len(requests):
        claims = _claim_distinct(connection, worker, requests)
        return [claims[request[0]] for request in requests]
    return _claim_repeated(connection, worker, requests)


def _claim_repeated(connection: Connection, worker: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
    """In rounds: a job's second request is judged when the answer to its first is known."""
    answers: dict[int, Claim] = {}
    granted: dict[str, Row] = {}
    left = list(enumerate(requests))
    while left:
        now = {request.job_id: index for index, request in reversed(left)}
        claims = _claim_distinct(connection, worker, [requests[index] for index in now.values()])
        for job_id, index in now.items():
            answers[index] = claims[job_id]
            if claims[job_id].verdict is Verdict.CLAIMED:
                granted[job_id] = _granted_row(requests[index], claims[job_id], worker)
        left = [(index, request) for index, request in left if index not in answers]
        for index, request in left:
            if request.job_id in granted:
                answers[index] = _beside(granted[request.job_id], request)
        left = [(index, request) for index, request in left if index not in answers]
    return [answers[index] for index in range(len(requests))]


def _granted_row(request: ClaimRequest, answer: Claim, worker: str) -> Row:
    source = Source(request.topic, request.partition, request.offset)
    return Row(JobState.RUNNING, request.hop, answer.token, worker, source)


def _beside(row: Row, request: ClaimRequest) -> Claim:
    """The answer for a job that this very call granted: here the caller does run it."""
    return refusal(row, request, judge(row, request, worker="", owner_alive=True))


def _claim_distinct(
    connection: Connection, worker: str, requests: Iterable[ClaimRequest]
) -> dict[str, Claim]:
    # Sorted by job id, as settlements are: whoever locks rows in one order cannot deadlock.
    ordered = sorted(requests)
    found = connection.execute(_CLAIM, _arrays(worker, ordered), prepare=True, binary=True).fetchall()
    claims = {row[0]: _FIRST if row[2] is None else _again(row, ordered, worker) for row in found}
    if len(claims) < len(ordered):
        missing = [request for request in ordered if request[0] not in claims]
        claims.update(_explain(connection, worker, missing))
    return claims


def _arrays(worker: str, ordered: Sequence[ClaimRequest]) -> dict[str, object]:
    ids, types, tenants, queues, attempts, hops, topics, partitions, offsets, enqueued = zip(
        *ordered, strict=True
    )
    return {
        "worker": worker,
        "job_id": texts(ids),
        "job_type": texts(types),
        "tenant": texts(tenants),
        "queue": texts(queues),
        "attempt": numbers(attempts),
        "hop": numbers(hops),
        "topic": texts(topics),
        "partition": numbers(partitions),
        "offset": numbers(offsets),
        "enqueued_at": micros(enqueued),
    }


def _again(
    row: tuple[str, int, str, str, int, int | None], ordered: Sequence[ClaimRequest], worker: str
) -> Claim:
    """A granted row that was there before. One of our own was never lost by anyone: it has no previous worker."""
    job_id, token, state, previous, attempt, crashes = row
    taken_over = state == JobState.RUNNING and previous != worker
    asked = ordered[bisect_left(ordered, job_id, key=_job_id)].attempt
    return Claim(
        Verdict.CLAIMED,
        token,
        JobState(state),
        previous if taken_over else "",
        attempt=attempt if attempt != asked else 0,
        crashes=crashes,
    )


def _explain(connection: Connection, worker: str, missing: Sequence[ClaimRequest]) -> dict[str, Claim]:
    rows = read_rows(connection, [request.job_id for request in missing])
    return {request.job_id: _verdict(rows.get(request.job_id), request, worker) for request in missing}


def _verdict(found: tuple[Row, bool] | None, request: ClaimRequest, worker: str) -> Claim:
    if found is None:
        return _HELD
    row, alive = found
    verdict = judge(row, request, worker=worker, owner_alive=alive)
    # What the rule would grant now was not granted: our own lease is over, or the row has changed since.
    return refusal(row, request, Verdict.HELD if verdict is Verdict.CLAIMED else verdict)


def read_rows(connection: Connection, job_ids: Sequence[str]) -> dict[str, tuple[Row, bool]]:
    """The rows of jobs, with whether their owner is alive and runs them. Jobs without a row are left out."""
    found = connection.execute(_ROWS, {"job_id": texts(job_ids)}, prepare=True, binary=True)
    return {
        job_id: (Row(JobState(state), hop, token, owner, Source(*source), attempt, due_at), alive)
        for job_id, state, hop, token, owner, *source, attempt, due_at, alive in found
    }
