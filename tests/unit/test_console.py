"""`pipeline console`: where reading begins, and how any record at all is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.adapters.avro.events import encode_breaker_event, encode_event
from pipeline.adapters.kafka.tail import BEGINNING, ReadFrom
from pipeline.cli.console import _Printer, read_from
from pipeline.core.events import BreakerChange, Trail
from pipeline.core.headers import job_headers
from pipeline.core.job import Job, Record
from pipeline.core.state import JobState, Trigger
from pipeline.core.topics import TopicNames
from pipeline.demo.jobs import SendEmail
from pipeline.errors import ConfigError
from tests.unit.avro_examples import SCHEMAS, example_codec

NOW = 1_800_000_000.0
JOB = Job("0198c1d2-0000-7000-8000-000000000001", "email.send", "acme", "default")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", BEGINNING),
        ("end", ReadFrom("end")),
        ("0", ReadFrom("offset", 0)),
        ("42", ReadFrom("offset", 42)),
        ("3:42", ReadFrom("offset", 42, 3)),
        ("90s", ReadFrom("time", NOW - 90)),
        ("1.5h", ReadFrom("time", NOW - 5400)),
        ("9999999d", ReadFrom("time", 0.0)),
        ("2027-01-15T08:00Z", ReadFrom("time", NOW)),
        ("2027-01-15T08:00", ReadFrom("time", NOW)),
        ("2027-01-15T09:00+01:00", ReadFrom("time", NOW)),
    ],
)
def test_reading_begins_where_people_say(text: str, expected: ReadFrom) -> None:
    assert read_from(text, now=NOW) == expected


@pytest.mark.parametrize("text", ["", "-1", "1:", ":1", "a:1", "10x", "yesterday", "9" * 40, "2027-13-01"])
def test_a_start_that_cannot_be_read_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed: beginning, end, an offset"):
        read_from(text, now=NOW)


def printer() -> _Printer:
    return _Printer(AvroCodec(SchemaCatalog(SCHEMAS)), TopicNames())


def record(value: bytes | None, *, topic: str = "jobs.default.normal", **changes: object) -> Record:
    found = Record(topic, 1, 7, b"acme", value, job_headers(JOB, ce_time=""), NOW)
    return found._replace(**changes)  # type: ignore[arg-type]


def test_a_job_is_shown_with_its_place_headers_and_payload() -> None:
    data = example_codec().encode("email.send", SendEmail(to="a", subject="b", body="c"))
    shown = printer().describe(record(data))
    assert (shown["topic"], shown["partition"], shown["offset"], shown["key"]) == (
        "jobs.default.normal",
        1,
        7,
        "acme",
    )
    assert shown["timestamp"] == "2027-01-15T08:00:00.000+00:00"
    assert shown["headers"]["pipeline-tenant"] == "acme"
    assert shown["job"] == {"id": JOB.job_id, "type": "email.send", "tenant": "acme", "attempt": 1, "hop": 0}
    assert shown["schema"] == "email.send v2"
    assert shown["payload"] == {"to": "a", "subject": "b", "body": "c", "cc": [], "reply_to": None}


CLAIMED = Trail(
    JOB, "w1", 3, [(JobState.QUEUED, Trigger.WORKER_CLAIMED, JobState.RUNNING, NOW, None, "", "")]
)
OPENED = BreakerChange("email.send", "", "default", "closed", "open", "failures", "w1", NOW, 3)


def test_events_and_schemas_are_shown_as_what_they_are() -> None:
    event = printer().describe(record(encode_event(CLAIMED), topic="jobs.events"))["event"]
    assert event["moves"][0]["state"] == "running"
    event = printer().describe(record(encode_breaker_event(OPENED), topic="jobs.events"))["event"]
    assert (event["job_type"], event["previous"], event["state"]) == ("email.send", "closed", "open")
    schema = printer().describe(record(b'{"type": "record"}', topic="jobs.schemas", key=b"\x01\x02"))
    assert (schema["fingerprint"], schema["schema"]) == ("0102", {"type": "record"})


@pytest.mark.parametrize(
    ("tenant", "job_type", "jobs", "breakers"),
    [
        (None, None, True, True),
        ("acme", None, True, False),
        (None, "email.send", True, True),
        ("acme", "email.send", True, False),
        ("other", None, False, False),
        (None, "other", False, False),
    ],
)
def test_records_are_chosen_by_tenant_and_type_events_too(
    tenant: str | None, job_type: str | None, *, jobs: bool, breakers: bool
) -> None:
    def chosen(value: bytes, topic: str) -> bool:
        headers = [] if topic == "jobs.events" else job_headers(JOB, ce_time="")
        given = record(value, topic=topic, headers=headers)
        return printer().concerns(given, tenant=tenant, job_type=job_type)

    assert chosen(b"", "jobs.default.normal") is jobs
    assert chosen(encode_event(CLAIMED), "jobs.events") is jobs
    assert chosen(encode_breaker_event(OPENED), "jobs.events") is breakers
    assert chosen(b"?", "jobs.events") is (tenant is None and job_type is None)


def test_a_header_that_is_there_twice_has_both_values_and_bytes_are_in_hex() -> None:
    headers = [("a", b"1"), ("a", b"\xff"), ("a", None), ("b", b"x")]
    assert printer().describe(record(None, headers=headers))["headers"] == {
        "a": ["1", "0xff", None],
        "b": "x",
    }


@settings(max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.too_slow])
@given(
    value=st.none() | st.binary(max_size=100),
    key=st.none() | st.binary(max_size=20),
    topic=st.sampled_from(["jobs.default.normal", "jobs.events", "jobs.schemas", "other"]),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=4),
    own=st.sampled_from([[], job_headers(JOB, ce_time="")]),
    timestamp=st.floats(0, 1e12),
)
def test_any_record_is_shown_as_one_line_of_json(
    value: bytes | None,
    key: bytes | None,
    topic: str,
    headers: list[tuple[str, bytes | None]],
    own: list[tuple[str, bytes | None]],
    timestamp: float,
) -> None:
    given = [*own, *headers]
    shown = json.dumps(printer().describe(Record(topic, 0, 0, key, value, given, timestamp)), default=str)
    assert shown.isascii()
    assert "\n" not in shown
