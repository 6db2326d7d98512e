"""The next record of a job: key and value byte for byte, headers that do not grow, never due too early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import headers as h
from pipeline.core.decision import DeadLetter, RunLater
from pipeline.core.headers import UNREADABLE_HOP, Parsed, job_headers, parse_job
from pipeline.core.job import EPOCH_LIMIT, Job, Record
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Failure, describe_failure
from pipeline.core.ports import Outgoing
from pipeline.core.topics import ERROR_HEADROOM_BYTES
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.onward import dead_letter, replay_record, retry_record

NOW = 1_800_000_000.5
JOB = Job(
    "0198c3a2-0000-7000-8000-000000000001",
    "email.send",
    "acme",
    "default",
    enqueued_at=NOW - 0.5,
    hop=4,
    attempt=2,
)
VALUE = bytes(range(256))
FAILURE = Failure("app.Broken", "it broke", "File handlers.py, line 3")
LATER = RunLater(60.0, NOW + 30, 3, FAILURE, ())
DEAD = DeadLetter("max_attempts", FAILURE, ())


def record(*extra: tuple[str, bytes | None], job: Job = JOB) -> Record:
    headers = [*job_headers(job, ce_time="2027-01-15T08:00:00Z"), *extra]
    return Record("jobs.default.normal", 3, 17, b"acme", VALUE, headers, NOW - 5)


def delivery(source: Record) -> Delivery:
    parsed = parse_job(source, queue="default")
    return Delivery(source, Partition(source.topic, source.partition), parsed.job, parsed.problem)


def retried(source: Record, decision: RunLater = LATER) -> Outgoing:
    return retry_record(delivery(source), decision, topic="jobs.default.retry.1m", group="workers", now=NOW)


def died(source: Record, decision: DeadLetter = DEAD) -> Outgoing:
    return dead_letter(delivery(source), decision, topic="jobs.default.dlq", group="workers", now=NOW)


def read(outgoing: Outgoing, *, offset: int = 99) -> Record:
    """What a consumer gets of it."""
    return Record(outgoing.topic, 0, offset, outgoing.key, outgoing.value, outgoing.headers, NOW + 1)


def parsed(outgoing: Outgoing) -> Parsed:
    return parse_job(read(outgoing), queue="default")


def test_key_and_value_are_copied_byte_for_byte() -> None:
    source = record()
    letter = died(source)
    for outgoing in (retried(source), letter, replay_record(read(letter), JOB, topic="jobs.default.normal")):
        assert (outgoing.key, outgoing.value) == (b"acme", VALUE)


def test_a_retry_has_the_next_hop_and_attempt_and_its_due_time() -> None:
    job, problem = parsed(retried(record()))
    assert problem == ""
    assert job == JOB._replace(hop=5, attempt=3, not_before=NOW + 30)


@given(st.floats(0, EPOCH_LIMIT - 1))
def test_a_retry_is_never_due_before_its_time_and_at_most_two_milliseconds_after(due_at: float) -> None:
    not_before = parsed(retried(record(), LATER._replace(due_at=due_at))).job.not_before
    assert due_at <= not_before <= due_at + 0.002


def test_a_snooze_writes_no_error() -> None:
    names = {name for name, _ in retried(record(), LATER._replace(failure=None, attempt=2)).headers}
    assert not any(name.startswith((h.FIRST, h.LAST)) for name in names)


def test_the_first_error_is_kept_and_the_last_one_replaced() -> None:
    first = read(retried(record()))
    later = LATER._replace(failure=Failure("app.Other", "it broke otherwise"))
    headers = dict(retried(first, later).headers)
    assert headers[h.FIRST + "error-class"] == b"app.Broken"
    assert headers[h.FIRST + "offset"] == b"17"
    assert headers[h.LAST + "error-class"] == b"app.Other"
    assert headers[h.LAST + "error-message"] == b"it broke otherwise"
    assert headers[h.LAST + "topic"] == b"jobs.default.retry.1m"
    assert headers[h.LAST + "group"] == b"workers"


def test_headers_of_the_application_go_along() -> None:
    source = record(("x-app", b"1"), ("x-app", b"2"), ("x-raw", b"\xff\x00"))
    letter = died(read(retried(source)))
    for outgoing in (letter, replay_record(read(letter), JOB, topic="t")):
        assert [value for name, value in outgoing.headers if name == "x-app"] == [b"1", b"2"]
        assert ("x-raw", b"\xff\x00") in outgoing.headers


def test_a_record_does_not_grow_with_its_hops() -> None:
    current = record()
    sizes = []
    for _ in range(6):
        current = read(retried(current))
        sizes.append(sum(len(name) + len(value or b"") for name, value in current.headers))
    assert max(sizes[1:]) - min(sizes[1:]) <= 8


def test_the_longest_errors_fit_into_what_the_topics_allow_for_them() -> None:
    """Row 28: a job at the size limit must still fit into the retry topics and the DLQ."""
    worst = describe_failure(Exception("\U0001f4a5" * 100_000))
    worst = worst._replace(error_class="\U0001f4a5" * 240, stack="\udc80" * 2 + "\U0001f4a5" * 8_000)
    worst = Failure(*(text.encode("utf-8", "backslashreplace").decode() for text in worst))
    source = record()
    letter = died(read(retried(source, LATER._replace(failure=worst))), DEAD._replace(failure=worst))
    size = sum(len(name) + len(value or b"") for name, value in letter.headers)
    assert size - sum(len(name) + len(value or b"") for name, value in source.headers) < ERROR_HEADROOM_BYTES


def test_a_letter_tells_why_and_waits_for_nothing() -> None:
    letter = died(record((h.NOT_BEFORE, b"1800000000.000")))
    headers = dict(letter.headers)
    assert headers[h.REASON] == b"max_attempts"
    assert h.NOT_BEFORE not in headers
    assert parsed(letter).job == JOB


def test_a_replay_starts_afresh_with_the_next_hop_and_is_counted() -> None:
    letter = read(died(read(retried(record()))))
    job = parse_job(letter, queue="default").job
    again = replay_record(letter, job, topic="jobs.default.normal")
    assert parsed(again).job == JOB._replace(hop=6, attempt=1, replays=1)
    names = {name for name, _ in again.headers}
    assert not any(name.startswith((h.FIRST, h.LAST)) for name in names)
    assert h.REASON not in names
    twice = replay_record(read(died(read(again))), parsed(again).job, topic="jobs.default.normal")
    assert parsed(twice).job.replays == 2


def bad(name: str, *values: bytes) -> Record:
    kept = [header for header in record().headers if header[0] != name]
    return record()._replace(headers=[*kept, *((name, value) for value in values)])


def test_the_letter_of_a_record_without_an_id_can_be_recognised_and_replayed() -> None:
    source = bad(h.ID)
    letter = died(source)
    job = parsed(letter).job
    assert job.job_id == delivery(source).job.job_id, "the id that the record was claimed by"
    again = parsed(replay_record(read(letter), job, topic="jobs.default.normal"))
    assert again.problem == ""
    assert again.job.job_id == job.job_id


def test_a_bad_counter_is_cured_by_a_replay() -> None:
    for source in (bad(h.ATTEMPT, b"-3"), bad(h.HOP, b"x"), bad(h.HOP, b"1", b"2"), bad(h.REPLAYS, b"many")):
        letter = died(source)
        job = parsed(letter).job
        again = parsed(replay_record(read(letter), job, topic="jobs.default.normal"))
        assert again.problem == ""
        assert again.job.hop == job.hop + 1
        assert again.job.attempt == 1


def test_the_letter_of_an_unreadable_hop_has_the_hop_it_was_claimed_with() -> None:
    letter = died(bad(h.HOP, b"1", b"2"))
    assert [value for name, value in letter.headers if name == h.HOP] == [b"%d" % UNREADABLE_HOP]


def test_the_letter_of_a_record_without_a_tenant_still_lacks_it() -> None:
    """It must not be invented: a replay would run the job for the wrong one."""
    assert parsed(died(bad(h.TENANT))).problem == f"header {h.TENANT} is missing"
