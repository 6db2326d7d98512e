"""What the index keeps of a letter, and selections as they are stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.job import Record
from pipeline.core.letter_facts import schema_ref, schema_reference
from pipeline.core.letters import facts_of, matches, read_letter
from pipeline.core.outcome import Failure
from pipeline.core.selection import Position, Selection
from tests.unit.foreign_letters import foreign_record, spring_headers
from tests.unit.letter_examples import DLQ, MAIN, NOW, dead_record, job_id, letter

FINGERPRINT = bytes(range(8))


def test_the_facts_of_a_letter() -> None:
    value = b"\xc3\x01" + FINGERPRINT + b"rest"
    facts = facts_of(letter(number=7, partition=2, offset=9, hop=3, attempt=4, replays=1, value=value))
    assert (facts.queue, facts.position, facts.job_id) == ("default", Position(2, 9), job_id(7))
    assert (facts.hop, facts.attempt, facts.replays, facts.size) == (3, 4, 1, len(value))
    assert (facts.reason, facts.error_class, facts.message) == ("max_attempts", "ValueError", "boom")
    assert facts.schema == FINGERPRINT.hex()
    assert (facts.last_topic, facts.last_partition, facts.last_offset) == (MAIN, 2, 49)
    assert (facts.first_topic, facts.first_partition, facts.first_offset) == (MAIN, 2, 49)
    assert (facts.dialect, facts.origin, facts.malformed, facts.dead_at) == ("pipeline", "", False, NOW)


def test_the_facts_do_not_depend_on_the_time_that_the_broker_stamped() -> None:
    record = dead_record()
    written = read_letter(record._replace(timestamp=0.0), queue="default")
    assert facts_of(written) == facts_of(read_letter(record, queue="default"))


def test_the_facts_of_a_letter_of_another() -> None:
    facts = facts_of(read_letter(foreign_record(spring_headers()), queue="default"))
    assert (facts.dialect, facts.origin, facts.malformed) == ("spring", "orders", True)
    assert (facts.job_type, facts.tenant, facts.last_offset) == ("unknown", "unknown", 2**33)


def test_texts_are_bounded_and_such_that_postgres_takes_them() -> None:
    facts = facts_of(letter(failure=Failure("E" * 999, "nul \x00 " + "m" * 9999), reason="\x00" + "r" * 999))
    for text in (facts.error_class, facts.message, facts.reason):
        assert len(text) < 600
        assert "\x00" not in text
        assert text.encode()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["ce_id", "pipeline-reason", "pipeline-hop", "pipeline-last-partition", "__value_schema_id"]
            ),
            st.none() | st.binary(max_size=30) | st.just(b"9" * 18),
        )
    ),
    st.none() | st.binary(max_size=30),
)
def test_no_record_has_facts_that_a_table_cannot_hold(
    headers: list[tuple[str, bytes | None]], value: bytes | None
) -> None:
    facts = facts_of(read_letter(Record(DLQ, 1, 2, None, value, headers, NOW), queue="default"))
    assert max(facts.last_partition, facts.hop, facts.attempt, facts.replays) < 2**31


# --- schemas


@pytest.mark.parametrize(
    ("value", "header", "reference"),
    [
        (b"\xc3\x01" + FINGERPRINT + b"x", b"", FINGERPRINT.hex()),
        (b"\x00\x00\x00\x00\x07x", b"", "id:7"),
        (b"\x01" + bytes(range(16)) + b"x", b"", f"guid:{bytes(range(16)).hex()}"),
        (b"anything", b"\x00\x00\x00\x00\x07", "id:7"),
        (b"\xc3\x01" + FINGERPRINT, b"\x00\x00\x00\x00\x07", "id:7"),
        (b"\xc3\x01\x02", b"", ""),
        (b"\x00\x01", b"", ""),
        (b"{}", b"", ""),
        (b"", b"", ""),
    ],
)
def test_a_payload_names_its_schema(value: bytes, header: bytes, reference: str) -> None:
    assert schema_reference(value, header) == reference


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (FINGERPRINT.hex(), ("fingerprint", FINGERPRINT)),
        ("id:7", ("id", b"\x00\x00\x00\x07")),
        (f"guid:{bytes(16).hex()}", ("guid", bytes(16))),
    ],
)
def test_the_name_of_a_schema_can_be_read_back(reference: str, expected: tuple[str, bytes]) -> None:
    assert schema_ref(reference) == expected


# --- selections


def test_a_selection_is_the_same_after_it_was_stored() -> None:
    chosen = Selection(
        references=frozenset({job_id(1), Position(3, 17)}),
        job_types=frozenset({"email.send", "invoice.render"}),
        since=NOW,
        search="100 %",
    )
    assert Selection.from_json(chosen.to_json()) == chosen
    assert chosen.to_json()["references"] == [job_id(1), "3:17"]
    assert Selection().to_json() == {}
    assert Selection.from_json({}) == Selection()


@pytest.mark.parametrize(
    ("selection", "fits"),
    [
        (Selection(since=NOW), True),
        (Selection(since=NOW + 1), False),
        (Selection(until=NOW), False),
        (Selection(until=NOW + 1), True),
        (Selection(search="BOO"), True),
        (Selection(search="boot"), False),
    ],
)
def test_letters_are_chosen_by_time_and_by_a_part_of_their_message(
    selection: Selection,
    fits: bool,  # noqa: FBT001
) -> None:
    assert matches(selection, letter()) is fits
