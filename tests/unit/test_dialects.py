"""Letters that Spring Kafka and Kafka Connect wrote are read as they wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.dialects import Dialect, dialect_of, error_prefixes
from pipeline.core.headers import HeaderList, forward_headers, job_headers
from pipeline.core.job import Job, Source, source_job_id
from pipeline.core.letters import read_letter
from tests.unit.foreign_letters import connect_headers, foreign_record, spring_headers
from tests.unit.letter_examples import NOW, dead_record, job_id


@pytest.mark.parametrize("prefix", ["kafka_dlt-", "kafka_"])
def test_a_letter_of_spring_tells_where_it_came_from_and_the_cause(prefix: str) -> None:
    read = read_letter(foreign_record(spring_headers(prefix=prefix)), queue="default")
    assert (read.dialect, read.reason, read.origin) == (Dialect.SPRING, "spring", "orders")
    last = read.last
    assert (last.topic, last.partition, last.offset) == ("orders", 3, 2**33)
    assert (last.error_class, last.message) == (
        "com.example.shop.OutOfStock",
        "Listener failed; no widget left",
    )
    assert (last.group, last.timestamp) == ("shop", NOW - 60)
    assert last.stack.startswith("com.example.shop.OutOfStock")
    assert read.first == last
    assert read.dead_at == NOW
    assert not read.is_ours


def test_a_letter_of_connect_tells_the_same_in_text() -> None:
    read = read_letter(foreign_record(connect_headers()), queue="default")
    assert (read.dialect, read.reason, read.origin) == (Dialect.CONNECT, "connect", "orders")
    assert (read.last.partition, read.last.offset, read.last.group) == (3, 17, "orders-to-warehouse")
    assert read.last.error_class == "org.apache.kafka.connect.errors.DataException"


def test_a_key_that_spring_could_not_read_is_the_error_where_there_is_no_other() -> None:
    headers = [
        (name.replace("exception", "key-exception"), value)
        for name, value in spring_headers()
        if "cause" not in name
    ]
    read = read_letter(foreign_record(headers), queue="default")
    assert read.last.error_class == "org.springframework.kafka.listener.ListenerExecutionFailedException"
    assert read.last.message == "Listener failed; no widget left"


def test_a_letter_of_others_has_the_id_of_the_record_it_stands_for() -> None:
    first = read_letter(foreign_record(spring_headers()), queue="default")
    again = read_letter(foreign_record(spring_headers(), partition=2, offset=9), queue="default")
    other = read_letter(foreign_record(spring_headers(offset=5)), queue="default")
    assert first.job.job_id == again.job.job_id == source_job_id(Source("orders", 3, 2**33))
    assert other.job.job_id != first.job.job_id


def test_a_letter_that_hopped_twice_came_from_its_first_topic() -> None:
    headers = [*spring_headers(), *spring_headers(topic="orders-retry-0", offset=1)]
    read = read_letter(foreign_record(headers), queue="default")
    assert read.origin == "orders"
    assert read.last.topic == "orders-retry-0"


def test_a_job_of_ours_that_spring_buried_keeps_its_identity() -> None:
    job = Job(job_id(4), "email.send", "acme", "default", hop=2)
    headers = [*job_headers(job, ce_time="2027-01-15T07:00:00+00:00"), *spring_headers()]
    read = read_letter(foreign_record(headers), queue="default")
    assert (read.job.job_id, read.job.hop, read.problem) == (job_id(4), 2, "")
    assert (read.dialect, read.is_ours) == (Dialect.SPRING, True)


def test_a_letter_of_ours_stays_ours_whatever_else_it_carries() -> None:
    read = read_letter(dead_record(extra=spring_headers()), queue="default")
    assert (read.dialect, read.origin, read.reason) == (Dialect.PIPELINE, "", "max_attempts")


@pytest.mark.parametrize("headers", [spring_headers(), spring_headers(prefix="kafka_"), connect_headers()])
def test_what_tells_of_the_error_is_dropped_and_nothing_else(headers: HeaderList) -> None:
    record = foreign_record(headers)
    kept = forward_headers(record, {}, drop=error_prefixes(dialect_of(dict(headers))))
    assert kept == [("tenant-of-theirs", b"acme")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name, _ in (*spring_headers(), *connect_headers())]),
            st.none() | st.binary(max_size=20),
        )
    )
)
def test_no_headers_of_others_make_reading_raise(headers: HeaderList) -> None:
    read = read_letter(foreign_record(headers), queue="default")
    assert read.last.offset >= -1
    assert read.last.partition >= -1
