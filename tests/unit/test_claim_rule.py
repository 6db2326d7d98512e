"""The claim rule against a second statement of it, and the promises that it keeps."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from pipeline.core.claims import ClaimRequest, Row, Verdict, attempt_of, judge, refusal
from pipeline.core.job import Source
from pipeline.core.state import JobState

SOURCES = [Source("jobs.default.normal", partition, 7) for partition in (0, 1)]

rows = st.builds(
    Row,
    state=st.sampled_from(
        [JobState.RUNNING, JobState.RETRYING, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED]
    ),
    hop=st.integers(0, 3),
    token=st.integers(1, 5),
    worker=st.sampled_from(["a", "b"]),
    source=st.sampled_from(SOURCES),
    attempt=st.integers(1, 3),
    due_at=st.sampled_from([0.0, 99.0]),
)


def make_request(*, hop: int = 0, source: Source = SOURCES[0]) -> ClaimRequest:
    return ClaimRequest("job", "email.send", "acme", "default", 1, hop, *source, 0.0)


requests = st.builds(make_request, hop=st.integers(0, 3), source=st.sampled_from(SOURCES))


def model(row: Row | None, request: ClaimRequest, *, worker: str, owner_alive: bool) -> str:
    """The rule in the words of the protocol model, in its order: first match wins."""
    if row is None:
        return "claimed"
    if row.state in {"completed", "cancelled"}:
        return "duplicate"
    if request.hop < row.hop:
        return "duplicate"
    if row.state == "dead":
        return "claimed" if request.hop > row.hop else "duplicate"
    if row.state == "retrying":
        return "held" if request.hop == row.hop and row.due_at else "claimed"
    if not owner_alive or row.worker == worker:  # gone, or ours by a claim whose answer was lost
        return "claimed"
    if (request.topic, request.partition, request.offset) == row.source:
        return "held"
    if request.hop > row.hop:
        return "held"
    return "duplicate"


@given(row=rows | st.none(), request=requests, owner_alive=st.booleans())
def test_the_rule_is_that_of_the_model(row: Row | None, request: ClaimRequest, *, owner_alive: bool) -> None:
    assert judge(row, request, worker="a", owner_alive=owner_alive) == model(
        row, request, worker="a", owner_alive=owner_alive
    )


@given(rows, requests)
def test_a_job_that_runs_on_a_live_worker_is_not_granted_to_another(row: Row, request: ClaimRequest) -> None:
    running = row._replace(state=JobState.RUNNING)
    assert judge(running, request, worker="c", owner_alive=True) is not Verdict.CLAIMED


@given(row=rows, request=requests, owner_alive=st.booleans())
def test_a_job_that_ended_for_good_never_runs_again(
    row: Row, request: ClaimRequest, *, owner_alive: bool
) -> None:
    for state in (JobState.COMPLETED, JobState.CANCELLED):
        ended = row._replace(state=state)
        assert judge(ended, request, worker="a", owner_alive=owner_alive) is Verdict.DUPLICATE


@given(row=rows, request=requests, owner_alive=st.booleans())
def test_a_retry_in_place_is_never_early_and_never_dropped(
    row: Row, request: ClaimRequest, *, owner_alive: bool
) -> None:
    waiting = row._replace(state=JobState.RETRYING, due_at=99.0)
    same = request._replace(hop=row.hop)
    verdict = judge(waiting, same, worker="a", owner_alive=owner_alive)
    assert verdict is Verdict.HELD
    assert refusal(waiting, same, verdict).due_at == 99.0
    assert judge(waiting._replace(due_at=0.0), same, worker="a", owner_alive=owner_alive) is Verdict.CLAIMED


@given(rows, requests)
def test_the_row_knows_which_attempt_a_retry_in_place_is(row: Row, request: ClaimRequest) -> None:
    assert attempt_of(row, request._replace(hop=row.hop, attempt=1)) == (
        row.attempt if row.attempt > 1 else 0
    )
    assert attempt_of(row, request._replace(hop=row.hop, attempt=row.attempt)) == 0
    assert attempt_of(row, request._replace(hop=row.hop + 1)) == 0


@given(row=rows, owner_alive=st.booleans())
def test_the_record_that_a_run_was_claimed_from_is_never_dropped_while_it_runs(
    row: Row, *, owner_alive: bool
) -> None:
    running = row._replace(state=JobState.RUNNING)
    redelivered = make_request(hop=row.hop, source=row.source)
    assert judge(running, redelivered, worker="c", owner_alive=owner_alive) is not Verdict.DUPLICATE


@given(row=rows, request=requests, owner_alive=st.booleans())
def test_a_record_that_is_newer_than_an_unfinished_row_is_never_dropped(
    row: Row, request: ClaimRequest, *, owner_alive: bool
) -> None:
    newer = request._replace(hop=row.hop + 1)
    if row.state not in {JobState.COMPLETED, JobState.CANCELLED}:
        assert judge(row, newer, worker="c", owner_alive=owner_alive) is not Verdict.DUPLICATE
