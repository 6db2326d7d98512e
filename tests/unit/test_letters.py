"""What a dead letter says, which letters a selection means, and whether one may still be replayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.claims import ClaimRequest, Row, Verdict, judge
from pipeline.core.job import Record, Source
from pipeline.core.letters import Standing, matches, read_letter, standing
from pipeline.core.outcome import Failure
from pipeline.core.selection import BadReference, Position, Selection, parse_reference
from pipeline.core.state import JobState
from tests.unit.letter_examples import BOOM, DLQ, MAIN, NOW, dead_record, job_id, letter

STORED = [JobState.RUNNING, JobState.RETRYING, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED]


def row(state: JobState, hop: int) -> Row:
    return Row(state, hop, 3, "worker-1", Source(MAIN, 2, 40))


def test_a_letter_of_the_worker_tells_its_job_its_reason_and_its_errors() -> None:
    read = letter(number=7, attempt=3, hop=2, partition=4, offset=17)
    assert (read.job.job_id, read.job.job_type, read.job.tenant) == (job_id(7), "email.send", "acme")
    assert (read.job.attempt, read.job.hop, read.job.queue) == (3, 2, "default")
    assert (read.reason, read.problem) == ("max_attempts", "")
    assert (read.last.error_class, read.last.message, read.last.stack) == BOOM
    assert (read.last.topic, read.last.partition, read.last.offset) == (MAIN, 2, 57)
    assert (read.last.group, read.last.timestamp) == ("jobs.default", NOW - 60)
    assert read.first == read.last
    assert str(read.position) == "4:17"
    assert read.dead_at == NOW


def test_the_first_error_is_kept_beside_the_last() -> None:
    early = [("pipeline-first-error-class", b"KeyError"), ("pipeline-first-at", b"1799999000.5")]
    read = letter(extra=early)
    assert (read.first.error_class, read.first.at) == ("KeyError", 1_799_999_000.5)
    assert read.last.error_class == "ValueError"


def test_a_letter_without_any_header_died_when_it_was_written() -> None:
    read = read_letter(Record(DLQ, 0, 5, None, None, [], NOW), queue="default")
    assert read.problem == "header ce_id is missing"
    assert (read.reason, read.last.error_class, read.last.partition) == ("", "", -1)
    assert read.dead_at == NOW


@pytest.mark.parametrize("at", [b"nan", b"inf", b"-1", b"1e300", b"yesterday", b"", b"\xff", None])
def test_a_time_that_makes_no_sense_is_none(at: bytes | None) -> None:
    record = Record(DLQ, 0, 5, None, None, [("pipeline-last-at", at)], NOW)
    assert read_letter(record, queue="default").last.at == 0.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["ce_id", "pipeline-reason", "pipeline-hop", "pipeline-last-at", "pipeline-last-offset"]
            )
            | st.text(max_size=10),
            st.none() | st.binary(max_size=30),
        )
    )
)
def test_no_headers_make_reading_raise(headers: list[tuple[str, bytes | None]]) -> None:
    read = read_letter(Record(DLQ, 1, 2, None, b"", headers, NOW), queue="default")
    assert read.position == (1, 2)
    assert read.dead_at > 0


# --- references


def test_a_reference_is_a_job_id_or_a_position() -> None:
    assert parse_reference("0198F2C4-6B7A-7000-8000-0000000000AB") == "0198f2c4-6b7a-7000-8000-0000000000ab"
    assert parse_reference("3:17") == Position(3, 17)


@pytest.mark.parametrize(
    "text", ["", "3", "3:", ":17", "-1:2", "3:17:1", "٣:1", "0198f2c4", "{" + job_id(1) + "}"]
)
def test_any_other_reference_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(BadReference) as refused:
        parse_reference(text)
    assert repr(text) in str(refused.value)
    assert "PARTITION:OFFSET" in str(refused.value)


# --- selections


def test_an_empty_selection_fits_every_letter_and_says_that_it_is_empty() -> None:
    assert matches(Selection(), letter())
    assert not Selection()


@pytest.mark.parametrize(
    ("selection", "fits"),
    [
        (Selection(job_types=frozenset({"email.send"})), True),
        (Selection(job_types=frozenset({"invoice.render"})), False),
        (Selection(job_types=frozenset({"invoice.render", "email.send"})), True),
        (Selection(tenants=frozenset({"acme"})), True),
        (Selection(tenants=frozenset({"acm"})), False),
        (Selection(reasons=frozenset({"max_attempts"})), True),
        (Selection(reasons=frozenset({"rejected"})), False),
        (Selection(references=frozenset({job_id(1)})), True),
        (Selection(references=frozenset({job_id(2)})), False),
        (Selection(references=frozenset({Position(3, 17)})), True),
        (Selection(references=frozenset({Position(3, 18), job_id(2)})), False),
        (Selection(tenants=frozenset({"acme"}), reasons=frozenset({"rejected"})), False),
    ],
)
def test_a_letter_must_fit_every_criterion(selection: Selection, fits: bool) -> None:  # noqa: FBT001
    assert matches(selection, letter(partition=3, offset=17)) is fits
    assert selection


def test_errors_are_matched_with_and_without_their_module() -> None:
    read = letter(failure=Failure("shop.errors.CardDeclined", "no"))
    assert matches(Selection(errors=frozenset({"CardDeclined"})), read)
    assert matches(Selection(errors=frozenset({"shop.errors.CardDeclined"})), read)
    assert not matches(Selection(errors=frozenset({"errors.CardDeclined"})), read)


def test_a_letter_without_an_error_fits_no_error() -> None:
    bare = read_letter(Record(DLQ, 0, 5, None, None, [], NOW), queue="default")
    assert not matches(Selection(errors=frozenset({"ValueError"})), bare)


# --- standing


@pytest.mark.parametrize(
    ("state", "hop", "expected"),
    [
        (JobState.DEAD, 2, Standing.OPEN),
        (JobState.DEAD, 1, Standing.OPEN),
        (JobState.DEAD, 3, Standing.REPLAYED),
        (JobState.RUNNING, 3, Standing.REPLAYED),
        (JobState.RETRYING, 4, Standing.REPLAYED),
        (JobState.RUNNING, 2, Standing.UNSETTLED),
        (JobState.RUNNING, 1, Standing.OPEN),
        (JobState.COMPLETED, 3, Standing.COMPLETED),
        (JobState.COMPLETED, 2, Standing.COMPLETED),
        (JobState.CANCELLED, 3, Standing.CANCELLED),
    ],
)
def test_the_row_tells_what_became_of_a_letter_of_hop_2(
    state: JobState, hop: int, expected: Standing
) -> None:
    assert standing(2, row(state, hop)) is expected


def test_a_job_that_the_store_does_not_know_is_open() -> None:
    assert standing(2, None) is Standing.OPEN


@given(st.sampled_from(STORED), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_only_letters_whose_replay_would_be_a_duplicate_or_premature_are_left_out(
    state: JobState,
    row_hop: int,
    hop: int,
    alive: bool,  # noqa: FBT001
) -> None:
    stored = row(state, row_hop)
    replayed = ClaimRequest(job_id(1), "email.send", "acme", "default", 1, hop + 1, MAIN, 0, 99, NOW)
    verdict = judge(stored, replayed, worker="worker-2", owner_alive=alive)
    found = standing(hop, stored)
    if verdict is Verdict.DUPLICATE:
        assert found is not Standing.OPEN
    if found in (Standing.COMPLETED, Standing.CANCELLED):
        assert verdict is Verdict.DUPLICATE


def test_the_record_of_a_letter_keeps_its_bytes() -> None:
    assert dead_record(value=b"\x00\xff").value == b"\x00\xff"
