"""Which schema a payload was written with: every form in which that is said, and every way to be wrong about it."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.core.writer_schemas import WriterRef
from pipeline.demo.jobs import SendEmail
from pipeline.errors import (
    BrokerUnavailable,
    PayloadError,
    RegistryUnavailable,
    SchemaError,
    UnknownWriterSchema,
)
from tests.unit.avro_examples import SCHEMAS, bare, catalog_of, example_codec, record

EMAIL = SendEmail(to="ada@example.org", subject="Hi", body="Hello", cc=["bo@example.org"])
GUID = uuid.UUID("0198a1c2-7d5e-7cc3-98c4-dc0c0c07398f").bytes
ID = WriterRef("id", b"\x00\x00\x01\x2f")
V1, V2 = ((SCHEMAS / "email.send" / f"v{number}.avsc").read_text() for number in (1, 2))


def codec_with(texts: dict[WriterRef, str]) -> tuple[AvroCodec, list[WriterRef]]:
    """A codec of the examples, and the names that it has looked up so far."""
    asked: list[WriterRef] = []

    def find(ref: WriterRef) -> str | None:
        asked.append(ref)
        return texts.get(ref)

    codec = AvroCodec(SchemaCatalog(SCHEMAS), find)
    codec.register("email.send", SendEmail)
    return codec, asked


def avro_bytes() -> bytes:
    return example_codec().encode("email.send", EMAIL)[10:]


# --- the four forms


@pytest.mark.parametrize(
    ("ref", "data", "header"),
    [
        (ID, b"\x00\x00\x00\x01\x2f" + avro_bytes(), b""),
        (WriterRef("guid", GUID), b"\x01" + GUID + avro_bytes(), b""),
        (ID, avro_bytes(), b"\x00\x00\x00\x01\x2f"),
        (WriterRef("guid", GUID), avro_bytes(), b"\x01" + GUID),
    ],
    ids=["prefix", "GUID prefix", "id in the header", "GUID in the header"],
)
def test_every_form_of_a_registry_is_decoded_and_looked_up_once(
    ref: WriterRef, data: bytes, header: bytes
) -> None:
    codec, asked = codec_with({ref: V2})
    for _ in range(3):
        assert codec.decode("email.send", data, header) == EMAIL
    assert codec.describe("email.send", data, header)["schema"] == "email.send v2"
    assert asked == [ref]


def test_an_older_version_under_an_id_is_read_as_the_newest() -> None:
    codec, _ = codec_with({ID: V1})
    old = bare(json.loads(V1), {"to": "a", "subject": "b", "body": "c"})
    assert codec.decode("email.send", b"\x00" + ID.value + old) == SendEmail(to="a", subject="b", body="c")


def test_the_header_wins_over_whatever_the_payload_starts_with(tmp_path: Path) -> None:
    class Number(BaseModel):
        a: int
        b: int

    text = json.dumps(record({"a": "int", "b": "int"}))
    codec = AvroCodec(catalog_of(tmp_path, json.loads(text)), lambda _: text)
    codec.register("some.job", Number)
    looks_like_single_object = b"\xc3\x01\x01"  # -98 and -1: bare Avro can start with any byte
    payload = codec.decode("some.job", looks_like_single_object, b"\x00\x00\x00\x00\x07")
    assert payload == Number(a=-98, b=-1)


def test_an_id_in_the_header_and_the_same_bytes_as_a_prefix_are_not_mixed_up() -> None:
    codec, _ = codec_with({ID: V2})
    prefix = b"\x00" + ID.value
    assert codec.decode("email.send", avro_bytes(), prefix) == EMAIL
    assert codec.decode("email.send", prefix + avro_bytes()) == EMAIL
    assert codec.decode("email.send", avro_bytes(), prefix) == EMAIL


@pytest.mark.parametrize(
    "header", [b"\x00", b"\x00\x00\x00\x00\x01\x02", b"\x01" + b"g" * 15, b"\x02abcd", b"7"]
)
def test_a_header_of_no_known_form_is_refused(header: bytes) -> None:
    codec, asked = codec_with({ID: V2})
    with pytest.raises(
        PayloadError, match=r"email\.send: header __value_schema_id has .* allowed: 00 and"
    ) as caught:
        codec.decode("email.send", avro_bytes(), header)
    assert type(caught.value) is PayloadError
    assert asked == []


# --- what is not known


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x01\x2f" + b"x" * 9, b"\x01" + GUID + b"x"])
def test_an_id_that_is_not_known_is_retryable_never_poison(data: bytes) -> None:
    """A registry that has just started says so of ids that it has."""
    codec, asked = codec_with({})
    for _ in range(2):
        with pytest.raises(UnknownWriterSchema, match=r"is schema_registry\.url set, and the right one\?"):
            codec.decode("email.send", data)
    assert len(asked) == 2


def test_without_a_registry_an_id_is_not_known_and_is_named() -> None:
    with pytest.raises(
        UnknownWriterSchema, match="written with registry schema 303, which is not known here"
    ):
        example_codec().decode("email.send", b"\x00\x00\x00\x01\x2fxx")


@pytest.mark.parametrize("error", [RegistryUnavailable("away"), BrokerUnavailable("away")])
def test_an_outage_passes_through_and_is_no_verdict_on_the_payload(error: Exception) -> None:
    def away(_: WriterRef) -> str | None:
        raise error

    codec = AvroCodec(SchemaCatalog(SCHEMAS), away)
    codec.register("email.send", SendEmail)
    with pytest.raises(type(error)):
        codec.decode("email.send", b"\x00\x00\x00\x01\x2fxx")
    assert codec.decode("email.send", example_codec().encode("email.send", EMAIL)) == EMAIL


def test_an_id_of_another_job_type_is_named() -> None:
    other = (SCHEMAS / "invoice.render" / "v1.avsc").read_text()
    codec, _ = codec_with({ID: other})
    with pytest.raises(
        PayloadError, match=r"written as pipeline\.examples\.RenderInvoice, not pipeline\.examples"
    ):
        codec.decode("email.send", b"\x00" + ID.value + b"xx")


def test_equal_fingerprints_with_other_logical_types_are_not_taken_for_the_packaged_version(
    tmp_path: Path,
) -> None:
    """The fingerprint leaves logical types out: only the text under an id tells them apart."""

    class When(BaseModel):
        at: datetime

    micros = record({"at": {"type": "long", "logicalType": "timestamp-micros"}})
    millis = record({"at": {"type": "long", "logicalType": "timestamp-millis"}})
    texts = {1: json.dumps(micros), 2: json.dumps(millis)}
    codec = AvroCodec(catalog_of(tmp_path, micros), lambda ref: texts[ref.number])
    codec.register("some.job", When)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    body = bare(micros, {"at": moment})
    assert codec.decode("some.job", b"\x00\x00\x00\x00\x01" + body) == When(at=moment)
    with pytest.raises(PayloadError, match=r"field 'at' is long \(timestamp-millis\) in one"):
        codec.decode("some.job", b"\x00\x00\x00\x00\x02" + body)


@pytest.mark.timeout(60)
def test_a_schema_that_doubles_with_each_level_does_not_stall_the_decoder(tmp_path: Path) -> None:
    def level(number: int) -> dict[str, Any]:
        if number == 40:
            return {"type": "record", "name": "L40", "fields": [{"name": "x", "type": "int"}]}
        inside = [{"name": "a", "type": level(number + 1)}, {"name": "b", "type": f"test.L{number + 1}"}]
        return {"type": "record", "name": f"L{number}", "fields": inside}

    class Mine(BaseModel):
        a: int

    hostile = json.dumps(record({"a": "int", "deep": level(1)}))
    codec = AvroCodec(catalog_of(tmp_path, record({"a": "int"})), lambda _: hostile)
    codec.register("some.job", Mine)
    with pytest.raises(PayloadError):
        codec.decode("some.job", b"\x00\x00\x00\x00\x01" + b"\x02" * 1000)


# --- writing


def test_with_a_registry_id_its_prefix_is_written_and_both_forms_are_read() -> None:
    codec, asked = codec_with({})
    single_object = codec.encode("email.send", EMAIL)
    codec.write_registry_id("email.send", 303, V2)
    data = codec.encode("email.send", EMAIL)
    assert data == b"\x00\x00\x00\x01\x2f" + single_object[10:]
    assert codec.decode("email.send", data) == codec.decode("email.send", single_object) == EMAIL
    assert asked == []


def test_an_id_under_which_the_registry_has_something_else_is_not_written() -> None:
    codec, _ = codec_with({})
    with pytest.raises(SchemaError, match=r"registry schema 303 is not .*v2\.avsc"):
        codec.write_registry_id("email.send", 303, V1)


def test_what_is_written_can_be_told_to_others() -> None:
    written = example_codec().written("email.send")
    assert (written.job_type, written.version, written.subject) == (
        "email.send",
        2,
        "pipeline.examples.SendEmail",
    )
    assert (written.fingerprint.hex(), written.text) == ("ad5093742b1517bc", V2)
