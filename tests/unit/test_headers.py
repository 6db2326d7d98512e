"""Record headers: what goes in comes out, and a record with bad ones is named and never skipped."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import headers as h
from pipeline.core.headers import (
    MAX_COUNT,
    MAX_HOP,
    UNREADABLE_HOP,
    forward_headers,
    job_headers,
    parse_job,
    text_problem,
)
from pipeline.core.job import EPOCH_LIMIT, Job, Record, source_job_id

JOB_ID = "0198c3a2-0000-7000-8000-000000000001"
CE_TIME = "2026-11-29T16:00:00.250000+00:00"
JOB = Job(JOB_ID, "email.send", "acme", "default", publisher="shop", enqueued_at=1_795_968_000.25)

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=256)
TIMES = st.integers(0, int(EPOCH_LIMIT) * 1000).map(lambda millis: millis / 1000)
JOBS = st.builds(
    Job,
    job_id=st.uuids().map(str),
    job_type=TEXTS,
    tenant=TEXTS,
    queue=st.just("default"),
    priority=st.sampled_from(["critical", "high", "normal", "low"]),
    publisher=st.just("") | TEXTS,
    enqueued_at=st.just(JOB.enqueued_at),
    attempt=st.integers(1, MAX_COUNT),
    hop=st.integers(0, MAX_HOP),
    not_before=TIMES,
    expires_at=TIMES,
    replays=st.just(0),
    ordering_key=st.just("") | TEXTS,
    traceparent=st.just("") | TEXTS,
)
OUR_NAMES = [
    name for name in vars(h).values() if isinstance(name, str) and name.startswith(("ce_", "pipeline-"))
]


def record(headers: Iterable[tuple[str, bytes | None]], *, offset: int = 17) -> Record:
    return Record(
        "jobs.default.normal", 3, offset, b"acme", b"\xc3\x01payload", list(headers), 1_795_968_001.5
    )


def changed(name: str, *values: bytes | None) -> Record:
    """A good record in which one header has these values instead: none, one or several."""
    kept = [header for header in job_headers(JOB, ce_time=CE_TIME) if header[0] != name]
    return record([*kept, *((name, value) for value in values)])


@given(JOBS)
def test_a_job_comes_back_from_its_headers(job: Job) -> None:
    parsed, problem = parse_job(record(job_headers(job, ce_time=CE_TIME)), queue="default")
    assert problem == ""
    assert parsed._replace(not_before=0) == job._replace(not_before=0)


@given(st.floats(0.001, EPOCH_LIMIT - 1))
def test_a_job_is_never_due_before_its_time(due_at: float) -> None:
    headers = job_headers(JOB._replace(not_before=due_at), ce_time=CE_TIME)
    assert due_at <= parse_job(record(headers), queue="default").job.not_before <= due_at + 0.002


def test_absent_values_have_no_header() -> None:
    names = {name for name, _ in job_headers(JOB, ce_time=CE_TIME)}
    always = {h.SPECVERSION, h.ID, h.TYPE, h.SOURCE, h.TIME, h.CONTENT_TYPE, h.TENANT, h.ATTEMPT, h.HOP}
    assert names == always


def test_a_record_of_a_foreign_producer_needs_only_id_type_and_tenant() -> None:
    headers = [("ce_id", JOB_ID.upper().encode()), ("ce_type", b"email.send"), ("pipeline-tenant", b"acme")]
    job, problem = parse_job(record(headers), queue="gpu")
    assert problem == ""
    assert job == Job(JOB_ID, "email.send", "acme", "gpu", enqueued_at=1_795_968_001.5)


@pytest.mark.parametrize("name", [h.ATTEMPT, h.HOP, h.REPLAYS])
@pytest.mark.parametrize(
    "value", [b"x", b"-1", b"1.5", b" 1", b"", b"\xff", b"\xd9\xa1", b"9999999999", b"9" * 500]
)
def test_a_counter_that_is_no_number_or_out_of_bounds_is_named(name: str, value: bytes) -> None:
    job, problem = parse_job(changed(name, value), queue="default")
    if name == h.REPLAYS and value == b"":
        assert problem == ""
        return
    assert problem.startswith(f"header {name} is {value[:80]!r}; allowed: a whole number from ")
    assert len(problem) < 500
    assert (job.job_id, job.job_type, job.tenant, job.queue) == (JOB_ID, "email.send", "acme", "default")
    assert (job.attempt, job.replays) == (1, 0)


@pytest.mark.parametrize("name", OUR_NAMES)
def test_nothing_large_is_remembered(name: str) -> None:
    raw = b"1" * 100_000
    held = sys.getrefcount(raw)
    parse_job(changed(name, raw), queue="default")
    assert sys.getrefcount(raw) == held


def test_the_first_attempt_is_1() -> None:
    assert parse_job(changed(h.ATTEMPT, b"0"), queue="default").problem.endswith(
        "a whole number from 1 to 1000000"
    )
    assert parse_job(changed(h.ATTEMPT, b"1000000"), queue="default").job.attempt == 1_000_000
    assert parse_job(changed(h.ATTEMPT, b"1000001"), queue="default").problem


@pytest.mark.parametrize(
    "name",
    [
        h.ID,
        h.TYPE,
        h.TENANT,
        h.ATTEMPT,
        h.HOP,
        h.NOT_BEFORE,
        h.EXPIRES,
        h.REPLAYS,
        h.PRIORITY,
        h.ORDERING_KEY,
    ],
)
def test_a_header_that_is_given_twice_is_named(name: str) -> None:
    problem = parse_job(changed(name, b"1", b"2", b"2"), queue="default").problem
    assert problem == f"header {name} is given 3 times; allowed: once"


@pytest.mark.parametrize("name", [h.SOURCE, h.TIME, h.TRACEPARENT, h.CONTENT_TYPE, "x-of-someone-else"])
@pytest.mark.parametrize(
    "values", [(b"a", b"b"), (b"\xff\xfe",), (b"x" * 5000,), (b"a\x00b",), (None,), (b"",)]
)
def test_a_header_that_the_job_can_run_without_never_keeps_it_from_running(
    name: str, values: tuple[bytes, ...]
) -> None:
    """Libraries that trace a service add a traceparent to every record, also where there is one."""
    job, problem = parse_job(changed(name, *values), queue="default")
    assert problem == ""
    assert (job.job_id, job.tenant, job.attempt) == (JOB_ID, "acme", 1)


@pytest.mark.parametrize("name", [h.TENANT, h.TYPE])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b"\xff\xfe", r"is b'\xff\xfe'; allowed: UTF-8 text"),
        (b"a\x00b", "has control characters"),
        (b"a\nb", "has control characters"),
        ("a\u2028b".encode(), "has control characters"),
        (b"x" * 257, "has 257 characters; allowed: at most 256"),
    ],
)
def test_a_bad_text_is_named(name: str, value: bytes | None, problem: str) -> None:
    job, found = parse_job(changed(name, value), queue="default")
    assert found == f"header {name} {problem}"
    assert job.job_id == JOB_ID
    assert "unknown" in (job.tenant, job.job_type)


@pytest.mark.parametrize("name", [h.TENANT, h.TYPE, h.ID])
def test_a_missing_header_is_named(name: str) -> None:
    assert parse_job(changed(name), queue="default").problem == f"header {name} is missing"


@pytest.mark.parametrize(
    "value",
    [b"42", b"not-a-uuid", JOB_ID.encode() + b"0", "\uff10198c3a2-0000-7000-8000-000000000001".encode()],
)
def test_an_id_that_is_no_uuid_is_replaced_by_one_that_stays_the_same(value: bytes) -> None:
    bad = changed(h.ID, value)
    job, problem = parse_job(bad, queue="default")
    assert problem.startswith(f"header {h.ID} is ")
    assert problem.endswith("; allowed: a UUID")
    assert job.job_id == source_job_id(bad.source)
    assert parse_job(bad, queue="default").job.job_id == job.job_id


def test_of_two_ids_neither_is_taken() -> None:
    """One of them may be that of a job that completed, and the record would be dropped as its duplicate."""
    bad = changed(h.ID, JOB_ID.encode(), str(uuid.uuid4()).encode())
    assert parse_job(bad, queue="default").job.job_id == source_job_id(bad.source)


@pytest.mark.parametrize("values", [(b"x",), (b"-1",), (b"1", b"2"), (b"9999999999",)])
def test_a_hop_that_cannot_be_read_is_above_any_real_one(values: tuple[bytes, ...]) -> None:
    """With hop 0 a retry would be dropped as an older copy of its job: neither run nor among the dead letters."""
    job = parse_job(changed(h.HOP, *values), queue="default").job
    assert job.hop == UNREADABLE_HOP
    assert 10_000_000 < job.hop < MAX_HOP


@pytest.mark.parametrize("name", [h.NOT_BEFORE, h.EXPIRES])
@pytest.mark.parametrize("value", [b"soon", b"-1", b"nan", b"inf", b"-inf", b"1e300", b"\xff", b"0x10"])
def test_a_time_that_makes_no_sense_is_named(name: str, value: bytes) -> None:
    problem = parse_job(changed(name, value), queue="default").problem
    assert problem == f"header {name} is {value!r}; allowed: seconds since 1970, up to 9214646400"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"2026-11-29T16:00:00Z", 1_795_968_000.0),
        (b"2026-11-29T16:00:00", 1_795_968_000.0),
        (b"2026-11-29T18:00:00+02:00", 1_795_968_000.0),
        (b"yesterday", 1_795_968_001.5),
        (b"0001-01-01T00:00:00+23:59", 1_795_968_001.5),
        (b"9999-12-31T23:59:59-23:59", 1_795_968_001.5),
        (b"\xff", 1_795_968_001.5),
    ],
)
def test_an_unreadable_time_of_enqueueing_is_replaced_by_that_of_the_record(
    value: bytes, seconds: float
) -> None:
    job, problem = parse_job(changed(h.TIME, value), queue="default")
    assert (problem, job.enqueued_at) == ("", seconds)


VALUES = (
    st.none()
    | st.binary(max_size=40)
    | st.integers(-5, 10**10).map(lambda n: b"%d" % n)
    | st.just(JOB_ID.encode())
)
NAMES = st.sampled_from(OUR_NAMES) | st.text(max_size=10)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=20))
def test_whatever_the_headers_are_a_job_with_usable_fields_comes_out(
    headers: list[tuple[str, bytes | None]],
) -> None:
    job, problem = parse_job(record(headers), queue="default")
    assert str(uuid.UUID(job.job_id)) == job.job_id
    assert text_problem(job.job_type) == text_problem(job.tenant) == ""
    assert (job.queue, 1 <= job.attempt <= MAX_COUNT, 0 <= job.hop <= MAX_HOP) == ("default", True, True)
    assert 0 <= job.enqueued_at <= EPOCH_LIMIT
    assert 0 <= job.not_before <= EPOCH_LIMIT
    assert len(problem) < 500
    assert parse_job(record(headers), queue="default") == (job, problem)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=10), st.data())
def test_one_bad_header_among_good_ones_keeps_the_identity(
    headers: list[tuple[str, bytes | None]], data: st.DataObject
) -> None:
    """As long as the id itself can be read, the letter is that of the very job."""
    good = job_headers(JOB, ce_time=CE_TIME)
    mixed = data.draw(st.permutations([*good, *(each for each in headers if each[0] != h.ID)]))
    job, _ = parse_job(record(mixed), queue="default")
    assert job.job_id == JOB_ID


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("acme", ""),
        ("Åland & Söner", ""),
        ("", "is empty"),
        ("x" * 257, "has 257 characters; allowed: at most 256"),
        ("a\x7f", "has control characters"),
        ("a\x85", "has control characters"),
        ("a\ud800", "has control characters"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(value: str, problem: str) -> None:
    assert text_problem(value) == problem


def test_headers_are_carried_forward_with_changes_in_their_place() -> None:
    before = record(
        [
            ("x-app", b"1"),
            (h.HOP, b"0"),
            (h.HOP, b"9"),
            (h.FIRST + "topic", b"t"),
            ("x-app", b"2"),
            ("empty", None),
        ]
    )
    after = forward_headers(before, {h.HOP: b"1", h.REASON: None}, drop=(h.FIRST, h.LAST))
    assert after == [("x-app", b"1"), ("x-app", b"2"), ("empty", None), (h.HOP, b"1")]
    assert before.headers[1] == (h.HOP, b"0"), "the record itself stays as it was"
