from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.core.ports import Codec
from pipeline.core.writer_schemas import WriterRef
from pipeline.demo.jobs import Currency, RenderInvoice, SendEmail
from pipeline.errors import InvalidJob, PayloadError, SchemaError, UnknownJobType, UnknownWriterSchema
from tests.unit.avro_examples import (
    EVERYTHING,
    SCHEMAS,
    Colour,
    Everything,
    Point,
    assert_stands_alone,
    bare,
    catalog_of,
    codec_of,
    everything,
    example_codec,
    framed,
    invoice,
    record,
)

JOB = "some.job"


class Small(BaseModel):
    a: str
    b: int


def j_schema() -> dict[str, Any]:
    return {
        "type": "record",
        "name": "J",
        "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "int"}],
    }


# --- the bytes -------------------------------------------------------------------------------------------


def test_the_codec_fits_the_seam() -> None:
    codec: Codec = example_codec()
    assert codec.encode("email.send", SendEmail(to="a", subject="b", body="c"))


def test_the_bytes_are_those_that_java_writes(tmp_path: Path) -> None:
    golden = bytes.fromhex("c301713b573e9529ef0d0a68656c6c6f06")
    codec = codec_of(tmp_path, Small, j_schema())
    assert codec.encode(JOB, Small(a="hello", b=3)) == golden
    assert codec.decode(JOB, golden) == Small(a="hello", b=3)


def test_every_supported_type_survives_a_round_trip(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, Everything, record(EVERYTHING))
    plain = everything()
    full = everything(
        maybe_small=3,
        maybe_moment=datetime(1969, 1, 1, tzinfo=UTC),
        maybe_amount=Decimal("-0.01"),
        maybe_colour=Colour.RED,
        maybe_point=Point(x=-1.0, colour=Colour.BLUE),
        maybe_list=[Point(x=0.5, colour=Colour.RED)],
    )
    for payload in (plain, full):
        assert codec.decode(JOB, codec.encode(JOB, payload)) == payload


def test_a_time_in_another_zone_comes_back_as_the_same_instant_in_utc() -> None:
    codec = example_codec()
    moment = datetime(2026, 7, 1, 14, 30, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    decoded = codec.decode("invoice.render", codec.encode("invoice.render", invoice(issued_at=moment)))
    assert isinstance(decoded, RenderInvoice)
    assert decoded.issued_at == moment
    assert decoded.issued_at.utcoffset() == timedelta(0)


# --- versions --------------------------------------------------------------------------------------------


def test_an_email_written_as_v1_or_v2_decodes_to_the_current_model() -> None:
    codec = example_codec()
    first, second = SchemaCatalog(SCHEMAS).versions("email.send")
    old = {"to": "ada@example.org", "subject": "Hi", "body": "Hello"}
    new = old | {"cc": ["bo@example.org"], "reply_to": "desk@example.org"}
    assert codec.decode("email.send", framed(first, old)) == SendEmail(**old, cc=[], reply_to=None)
    assert codec.decode("email.send", framed(second, new)) == SendEmail.model_validate(new)


def test_an_invoice_written_as_v1_or_v2_decodes_to_the_current_model() -> None:
    codec = example_codec()
    first, _ = SchemaCatalog(SCHEMAS).versions("invoice.render")
    payload = invoice()
    assert codec.decode("invoice.render", framed(first, payload.model_dump())) == payload
    newer = invoice(purchase_order="PO-1", footer="Thanks")
    assert codec.decode("invoice.render", codec.encode("invoice.render", newer)) == newer


class OldEmail(BaseModel):
    to: str
    subject: str
    body: str


def v1_only(folder: Path, **texts: str) -> AvroCodec:
    """The codec of a worker that was built before v2; `texts` are writer schemas by fingerprint."""
    v1 = json.loads((SCHEMAS / "email.send" / "v1.avsc").read_text())
    catalog = catalog_of(folder, v1, job_type="email.send")
    codec = AvroCodec(catalog, lambda ref: texts.get(ref.value.hex()))
    codec.register("email.send", OldEmail)
    return codec


def v2_email() -> bytes:
    payload = SendEmail(to="ada@example.org", subject="Hi", body="Hello", cc=["bo@example.org"], reply_to="x")
    return example_codec().encode("email.send", payload)


V2_TEXT = (SCHEMAS / "email.send" / "v2.avsc").read_text()
V2_FINGERPRINT = "ad5093742b1517bc"


def test_an_older_worker_reads_a_newer_payload_once_it_can_find_the_writer_schema(tmp_path: Path) -> None:
    codec = v1_only(tmp_path, **{V2_FINGERPRINT: V2_TEXT})
    assert codec.decode("email.send", v2_email()) == OldEmail(
        to="ada@example.org", subject="Hi", body="Hello"
    )


def test_a_payload_of_an_unknown_version_names_its_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(UnknownWriterSchema, match=f"email.send: written with schema {V2_FINGERPRINT}"):
        v1_only(tmp_path).decode("email.send", v2_email())
    without_seam = AvroCodec(SchemaCatalog(tmp_path))
    without_seam.register("email.send", OldEmail)
    with pytest.raises(UnknownWriterSchema, match=V2_FINGERPRINT):
        without_seam.decode("email.send", v2_email())


def test_a_writer_schema_is_looked_up_once_and_a_missing_one_again_and_again(tmp_path: Path) -> None:
    asked: list[WriterRef] = []
    answers: list[str | None] = [None, None, V2_TEXT]
    v1 = json.loads((SCHEMAS / "email.send" / "v1.avsc").read_text())

    def find(ref: WriterRef) -> str | None:
        asked.append(ref)
        return answers[len(asked) - 1]

    codec = AvroCodec(catalog_of(tmp_path, v1, job_type="email.send"), find)
    codec.register("email.send", OldEmail)
    for _ in range(2):
        with pytest.raises(UnknownWriterSchema):
            codec.decode("email.send", v2_email())
    for _ in range(3):
        assert codec.decode("email.send", v2_email())
    assert codec.describe("email.send", v2_email())
    assert asked == [WriterRef("fingerprint", bytes.fromhex(V2_FINGERPRINT))] * 3


def test_a_wrong_text_under_a_fingerprint_is_not_trusted(tmp_path: Path) -> None:
    wrong = json.dumps(json.loads(V2_TEXT) | {"fields": json.loads(V2_TEXT)["fields"][::-1]})
    codec = v1_only(tmp_path, **{V2_FINGERPRINT: wrong})
    with pytest.raises(UnknownWriterSchema, match=f"{V2_FINGERPRINT}: the text found for it has fingerprint"):
        codec.decode("email.send", v2_email())


@pytest.mark.parametrize("text", ["", "nonsense", '{"type": "record"}', "[" * 10_000])
def test_a_broken_text_under_a_fingerprint_is_a_payload_error(tmp_path: Path, text: str) -> None:
    codec = v1_only(tmp_path, **{V2_FINGERPRINT: text})
    with pytest.raises(PayloadError, match=f"schema {V2_FINGERPRINT}: not a valid Avro schema"):
        codec.decode("email.send", v2_email())


def foreign(folder: Path, schema: dict[str, Any], values: dict[str, Any]) -> tuple[AvroCodec, bytes]:
    """A codec that knows `a: int` only, and a payload of a foreign version whose text can be found."""

    class Mine(BaseModel):
        a: int

    version = catalog_of(folder / "theirs", schema).latest(JOB)
    codec = AvroCodec(catalog_of(folder / "mine", record({"a": "int"})), lambda _: version.text)
    codec.register(JOB, Mine)
    return codec, framed(version, values)


def test_a_newer_version_with_other_logical_types_is_refused_instead_of_misread(tmp_path: Path) -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    micros = {"type": "long", "logicalType": "timestamp-micros"}

    class When(BaseModel):
        at: datetime

    newer = catalog_of(tmp_path / "newer", record({"at": millis, "b": ("int", 0)})).latest(JOB)
    codec = AvroCodec(catalog_of(tmp_path / "mine", record({"at": micros})), lambda _: newer.text)
    codec.register(JOB, When)
    data = framed(newer, {"at": datetime(2026, 1, 1, tzinfo=UTC), "b": 1})
    with pytest.raises(PayloadError, match=r"field 'at' is long \(timestamp-millis\) in one"):
        codec.decode(JOB, data)


def test_a_foreign_version_that_cannot_be_resolved_is_a_payload_error(tmp_path: Path) -> None:
    codec, data = foreign(tmp_path, record({"b": "int"}), {"b": 1})
    with pytest.raises(PayloadError, match="SchemaResolutionError"):
        codec.decode(JOB, data)


def test_a_foreign_version_that_contains_itself_is_refused_before_it_can_crash(tmp_path: Path) -> None:
    text = json.dumps(record({"a": "int", "next": ["null", "test.Payload"]}))
    codec = AvroCodec(catalog_of(tmp_path, record({"a": "int"})), lambda _: text)
    with pytest.raises(PayloadError, match="contains itself"):
        codec.describe(JOB, b"\xc3\x01" + b"fingerpr" + b"\x02" * 100_000)


def test_logical_types_that_this_package_does_not_know_stay_plain_values(tmp_path: Path) -> None:
    schema = record({"a": "int", "t": {"type": "int", "logicalType": "time-millis"}, "o": {"type": "long", "logicalType": ["x"]}})  # fmt: skip
    codec, _ = foreign(tmp_path, schema, {"a": 1, "t": 1, "o": 1})
    theirs = SchemaCatalog(tmp_path / "theirs").latest(JOB)
    data = b"\xc3\x01" + theirs.fingerprint + bare(record({"a": "int", "t": "int", "o": "long"}), {"a": 1, "t": 5, "o": 6})  # fmt: skip
    assert codec.describe(JOB, data)["payload"] == {"a": 1, "t": 5, "o": 6}


def test_versions_that_differ_in_defaults_alone_share_a_fingerprint_and_the_newest_is_shown(
    tmp_path: Path,
) -> None:
    codec = codec_of(
        tmp_path, Small, record({"a": "string", "b": "int"}), record({"a": "string", "b": ("int", 5)})
    )
    data = codec.encode(JOB, Small(a="x", b=1))
    assert codec.decode(JOB, data) == Small(a="x", b=1)
    assert codec.describe(JOB, data)["schema"] == "some.job v2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
        ),
        ("long", {"type": "long", "logicalType": "timestamp-micros"}),
    ],
)
def test_packaged_versions_that_disagree_on_a_logical_type_are_refused(
    tmp_path: Path, old: Any, new: Any
) -> None:
    class When(BaseModel):
        at: datetime

    with pytest.raises(SchemaError, match=r"v1\.avsc and .*v2\.avsc: field 'at' is"):
        codec_of(tmp_path, When, record({"at": old}), record({"at": new}))


def test_a_changed_decimal_scale_is_refused_even_inside_containers(tmp_path: Path) -> None:
    def priced(scale: int) -> dict[str, Any]:
        amount = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}
        return record({"prices": ["null", {"type": "map", "values": {"type": "array", "items": amount}}]})

    class Prices(BaseModel):
        prices: dict[str, list[Decimal]] | None

    with pytest.raises(SchemaError, match="field 'prices' is"):
        codec_of(tmp_path, Prices, priced(2), priced(3))
    assert codec_of(tmp_path / "same", Prices, priced(2), priced(2))


def test_a_symbol_added_by_a_newer_publisher_becomes_the_default_of_the_enum(tmp_path: Path) -> None:
    class Paid(BaseModel):
        currency: Currency

    def schema(*symbols: str) -> dict[str, Any]:
        return record(
            {"currency": {"type": "enum", "name": "Currency", "symbols": symbols, "default": "OTHER"}}
        )

    newer = catalog_of(tmp_path / "newer", schema("OTHER", "EUR", "GBP", "USD", "CHF")).latest(JOB)
    codec = AvroCodec(
        catalog_of(tmp_path / "mine", schema("OTHER", "EUR", "GBP", "USD")), lambda _: newer.text
    )
    codec.register(JOB, Paid)
    assert codec.decode(JOB, framed(newer, {"currency": "CHF"})) == Paid(currency=Currency.OTHER)
    assert codec.describe(JOB, framed(newer, {"currency": "CHF"}))["payload"] == {"currency": "CHF"}


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"", "the payload is empty"),
        (b'{"to": "ada@example.org"}', "looks like JSON"),
        (b"[1, 2]", "looks like JSON"),
        (b"Obj\x01\x04\x14avro.codec", "Avro container file"),
        (b"\x00", "ends inside its registry prefix, after 1 bytes"),
        (b"\x00\x00\x00\x01", "ends inside its registry prefix, after 4 bytes"),
        (b"\x01" + b"g" * 15, "ends inside its registry prefix, after 16 bytes"),
        (b"\x0ahello\x06", "7 bytes of something else"),
        (b"\xc3\x02" + b"x" * 20, "something else"),
        (b"\xc3", "something else"),
        (b"\xc3\x01", "ends inside its schema fingerprint"),
        (b"\xc3\x01\x01\x02\x03\x04\x05\x06\x07", "ends inside its schema fingerprint"),
    ],
)
def test_other_framings_are_refused_with_a_hint(data: bytes, hint: str) -> None:
    codec = example_codec()
    for call in (codec.decode, codec.describe):
        with pytest.raises(PayloadError, match=f"^email.send: .*{hint}") as caught:
            call("email.send", data)
        assert type(caught.value) is PayloadError


def test_every_truncation_of_a_payload_is_refused() -> None:
    codec = example_codec()
    for job_type, payload in (
        ("email.send", SendEmail(to="a", subject="b", body="c")),
        ("invoice.render", invoice()),
    ):
        data = codec.encode(job_type, payload)
        for length in range(len(data)):
            with pytest.raises(PayloadError):
                codec.decode(job_type, data[:length])


def test_trailing_bytes_are_refused_which_fastavro_would_ignore() -> None:
    codec = example_codec()
    data = codec.encode("email.send", SendEmail(to="a", subject="b", body="c"))
    for junk in (b"\x00", b"junk", data):
        with pytest.raises(PayloadError, match="bytes too many"):
            codec.decode("email.send", data + junk)
        with pytest.raises(PayloadError, match="bytes too many"):
            codec.describe("email.send", data + junk)


@pytest.mark.parametrize("dropped", ["string", "bytes", {"type": "fixed", "name": "F", "size": 5}, {"type": "map", "values": "string"}])  # fmt: skip
def test_a_truncated_field_that_the_reader_skips_is_noticed(tmp_path: Path, dropped: Any) -> None:
    values: dict[str, Any] = {"string": "hello", "bytes": b"hello", "fixed": b"fixed", "map": {"k": "hello"}}
    value = values[str(dropped if isinstance(dropped, str) else dropped["type"])]
    codec, data = foreign(tmp_path, record({"a": "int", "z": dropped}), {"a": 1, "z": value})
    assert codec.decode(JOB, data).model_dump() == {"a": 1}
    for length in range(10, len(data)):
        with pytest.raises(PayloadError) as caught:
            codec.decode(JOB, data[:length])
        assert_stands_alone(caught.value)


@pytest.mark.parametrize("size", [b"\x01", b"\x09", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_a_skipped_field_of_negative_length_is_noticed(tmp_path: Path, size: bytes) -> None:
    codec, data = foreign(tmp_path, record({"a": "int", "z": "bytes"}), {"a": 1, "z": b""})
    for rest in (b"", b"abc", b"abcdefgh"):
        with pytest.raises(PayloadError):
            codec.decode(JOB, data[:-1] + size + rest)


def test_bytes_of_another_version_under_a_fingerprint_are_refused_by_their_end() -> None:
    codec = example_codec()
    first, second = SchemaCatalog(SCHEMAS).versions("invoice.render")
    body = codec.encode("invoice.render", invoice(purchase_order="PO", footer="thanks"))[10:]
    assert body
    with pytest.raises(PayloadError, match=r"valid invoice\.render v1: 1[0-9] bytes too many"):
        codec.decode("invoice.render", b"\xc3\x01" + first.fingerprint + body)
    assert codec.decode("invoice.render", b"\xc3\x01" + second.fingerprint + body)


def test_a_payload_of_another_job_type_is_named(tmp_path: Path) -> None:
    codec = example_codec()
    data = codec.encode("invoice.render", invoice())
    with pytest.raises(PayloadError, match=r"email\.send: written as invoice\.render v2") as caught:
        codec.decode("email.send", data)
    assert not isinstance(caught.value, UnknownWriterSchema)
    other, theirs = foreign(tmp_path, record({"a": "int"}, name="Other"), {"a": 1})
    with pytest.raises(PayloadError, match=r"written as test\.Other, not test\.Payload"):
        other.decode(JOB, theirs)


ENORMOUS = (
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02",
    b"\x80\x80\x80\x80\x20",
)


class Containers(BaseModel):
    items: list[int]
    names: dict[str, bool]
    text: str
    raw: bytes


@pytest.mark.parametrize("count", ENORMOUS)
@pytest.mark.parametrize("before", [b"", b"\x00", b"\x00\x00", b"\x00\x00\x00"], ids=["array", "map", "string", "bytes"])  # fmt: skip
@pytest.mark.timeout(60)
def test_an_enormous_count_or_length_fails_at_once_at_the_end_of_the_bytes(
    tmp_path: Path, before: bytes, count: bytes
) -> None:
    schema = record({"items": {"type": "array", "items": "int"}, "names": {"type": "map", "values": "boolean"}, "text": "string", "raw": "bytes"})  # fmt: skip
    codec = codec_of(tmp_path, Containers, schema)
    header = codec.encode(JOB, Containers(items=[], names={}, text="", raw=b""))[:10]
    with pytest.raises(PayloadError):
        codec.decode(JOB, header + before + count + b"\x02" * 20)


@pytest.mark.timeout(60)
def test_a_decimal_of_a_megabyte_is_refused_at_once(tmp_path: Path) -> None:
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

    class Paid(BaseModel):
        amount: Decimal

    codec = codec_of(tmp_path, Paid, record({"amount": amount}))
    header = codec.encode(JOB, Paid(amount=Decimal(1)))[:10]
    for body in (b"\x7f" * 1_000_000, b"\x7f" * 5, b"\x3b\x9a\xca\x00"):  # the last is 10 ** 9: ten digits
        with pytest.raises(PayloadError, match=r"not a valid some.job v1: ValueError"):
            codec.decode(JOB, header + bare("bytes", body))
    smallest = codec.decode(JOB, header + bare("bytes", (1 - 10**9).to_bytes(4, "big", signed=True)))
    assert smallest == Paid(amount=Decimal("-9999999.99"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (bare("string", "x"), "they end too early"),
        (b"\x04\xff\xfe\x02", "UnicodeDecodeError"),
        (b"\x02x\x80", "they end too early"),
    ],
)
def test_broken_avro_is_one_kind_of_error_with_version_and_size(
    tmp_path: Path, body: bytes, reason: str
) -> None:
    codec = codec_of(tmp_path, Small, j_schema())
    header = codec.encode(JOB, Small(a="x", b=1))[:10]
    with pytest.raises(
        PayloadError, match=f"{10 + len(body)} bytes that are not a valid some.job v1: {reason}"
    ) as caught:
        codec.decode(JOB, header + body)
    assert_stands_alone(caught.value)


@pytest.mark.parametrize(
    ("field", "type_", "body"),
    [
        ("ident", EVERYTHING["ident"], bare("string", "no uuid")),
        ("moment", EVERYTHING["moment"], bare("long", 2**62)),
        ("day", EVERYTHING["day"], bare("long", 2**40)),
        ("colour", EVERYTHING["colour"], b"\x08"),
    ],
)
def test_values_outside_their_logical_type_are_payload_errors(
    tmp_path: Path, field: str, type_: Any, body: bytes
) -> None:
    version = catalog_of(tmp_path, record({field: type_})).latest(JOB)
    codec = AvroCodec(SchemaCatalog(tmp_path))
    with pytest.raises(PayloadError, match=r"not a valid some\.job v1"):
        codec.describe(JOB, b"\xc3\x01" + version.fingerprint + body)


# --- what models refuse ----------------------------------------------------------------------------------


class Guarded(BaseModel):
    a: Annotated[str, Field(min_length=3)]
    b: int

    @field_validator("b")
    @classmethod
    def small(cls, value: int) -> int:
        if value == 13:
            raise KeyError("a validator with a mistake: secret-value")
        if value > 100:
            raise ValueError(f"secret-value {value}")
        return value


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"a": "s3", "b": 1}, r"field 'a': string_too_short \(1 in all\)"),
        ({"a": "secret-value", "b": 1000}, "field 'b': value_error"),
        ({"a": "secret-value", "b": 13}, "its validator raised KeyError"),
    ],
)
def test_a_value_that_the_model_refuses_is_a_payload_error_without_the_value(
    tmp_path: Path, values: dict[str, Any], complaint: str
) -> None:
    codec = codec_of(tmp_path, Guarded, j_schema())
    data = framed(SchemaCatalog(tmp_path).latest(JOB), values)
    with pytest.raises(
        PayloadError, match=f"some.job: Guarded refuses a payload of some.job v1: {complaint}"
    ) as caught:
        codec.decode(JOB, data)
    assert values["a"] not in str(caught.value)
    assert_stands_alone(caught.value)


def test_a_key_of_a_map_is_payload_and_not_shown(tmp_path: Path) -> None:
    class Labelled(BaseModel):
        labels: dict[str, Annotated[str, Field(max_length=2)]]

    codec = codec_of(tmp_path, Labelled, record({"labels": {"type": "map", "values": "string"}}))
    data = framed(SchemaCatalog(tmp_path).latest(JOB), {"labels": {"secret-key": "long"}})
    with pytest.raises(PayloadError, match="field 'labels': string_too_long") as caught:
        codec.decode(JOB, data)
    assert "secret" not in str(caught.value)


def test_strict_and_frozen_models_and_names_with_aliases_work(tmp_path: Path) -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
        colour: Colour
        ident: UUID

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True, frozen=True, populate_by_name=True)
        inner: Inner
        colours: list[Colour] = Field(strict=True)
        from_: int = Field(alias="from")

    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [
            {"name": "colour", "type": EVERYTHING["colour"]},
            {"name": "ident", "type": EVERYTHING["ident"]},
        ],
    }
    schema = record({"inner": inner, "colours": {"type": "array", "items": "Colour"}, "from_": "int"})
    codec = codec_of(tmp_path, Strict, schema)
    payload = Strict(inner=Inner(colour=Colour.RED, ident=UUID(int=1)), colours=[Colour.BLUE], from_=5)
    assert codec.decode(JOB, codec.encode(JOB, payload)) == payload


# --- what cannot be written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"small": 2**31}, "field 'small' is out of the range of an Avro int: -2147483648 to 2147483647"),
        ({"small": -(2**31) - 1}, "field 'small' is out of the range of an Avro int"),
        ({"large": 2**63}, "field 'large' is out of the range of an Avro long"),
        ({"large": -(2**63) - 1}, "field 'large' is out of the range of an Avro long"),
        ({"large": 10**400}, "field 'large' is out of the range of an Avro long"),
        ({"maybe_small": 2**40}, "field 'maybe_small' is out of the range of an Avro int"),
        ({"tallies": {"a": [1, 2**31]}}, "field 'tallies' is out of the range of an Avro int"),
        ({"moment": datetime(2026, 1, 1)}, "field 'moment' is a time without a zone"),  # noqa: DTZ001 - the point
        ({"maybe_moment": datetime(2026, 1, 1)}, "field 'maybe_moment' is a time without a zone"),  # noqa: DTZ001 - the point
        ({"amount": Decimal("1.234")}, "field 'amount' has more than 7 digits before or 2 after the point"),
        ({"amount": Decimal(10**7)}, "field 'amount' has more than 7 digits"),
        ({"amount": Decimal("1E+1000000")}, "field 'amount' has more than 7 digits"),
        ({"maybe_amount": Decimal(-99999999)}, "field 'maybe_amount' has more than 7 digits"),
        ({"text": "\ud800"}, "field 'text' of Everything cannot be written as Avro: text with a lone surrogate"),
        ({"tallies": {"\udfff": []}}, "field 'tallies' of Everything cannot be written as Avro: text with a lone"),
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_a_value_that_avro_cannot_hold_is_refused_by_field(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    codec = codec_of(tmp_path, Everything, record(EVERYTHING))
    valid = everything()
    with pytest.raises(InvalidJob, match=f"^some.job: {complaint}") as caught:
        codec.encode(JOB, valid.model_copy(update=changes))
    assert_stands_alone(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", 5),
        ("text", None),
        ("text", b"bytes"),
        ("small", True),
        ("small", 2.7),
        ("small", "3"),
        ("large", True),
        ("large", 2.7),
        ("ratio", "1"),
        ("flag", "yes"),
        ("flag", 1),
        ("raw", "text"),
        ("ident", "no uuid"),
        ("day", datetime(2026, 1, 1, tzinfo=UTC)),
        ("day", 5),
        ("moment", 5),
        ("moment", date(2026, 1, 1)),
        ("amount", 1.5),
        ("amount", Decimal("NaN")),
        ("amount", Decimal("Infinity")),
        ("colour", "green"),
        ("point", None),
        ("point", {"x": 1.0}),
        ("point", Colour.RED),
        ("maybe_point", "ab"),
        ("maybe_list", [None]),
        ("points", "ab"),
        ("points", None),
        ("tallies", {"a": "12"}),
        ("tallies", {1: [1]}),
        ("tallies", []),
        ("maybe_small", False),
        ("maybe_colour", "green"),
    ],
)
def test_a_model_that_was_changed_without_validation_writes_nothing_wrong(
    tmp_path: Path, field: str, value: Any
) -> None:
    codec = codec_of(tmp_path, Everything, record(EVERYTHING))
    with pytest.raises(InvalidJob, match=r"some.job: ") as caught:
        codec.encode(JOB, everything().model_copy(update={field: value}))
    assert repr(field) in str(caught.value)


@pytest.mark.parametrize(("given", "missing"), [({"a": "x"}, "b"), ({"b": 1}, "a")])
def test_a_model_without_a_value_is_refused(tmp_path: Path, given: dict[str, Any], missing: str) -> None:
    codec = codec_of(tmp_path, Small, j_schema())
    with pytest.raises(InvalidJob, match=f"field '{missing}'"):
        codec.encode(JOB, Small.model_construct(**given))


@pytest.mark.timeout(60)
def test_zero_is_written_whatever_its_exponent(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, Everything, record(EVERYTHING))
    for zero in (Decimal("0E+999999999"), Decimal("-0"), Decimal("0E-9")):
        decoded = codec.decode(JOB, codec.encode(JOB, everything(amount=zero)))
        assert isinstance(decoded, Everything)
        assert decoded.amount == 0


def test_a_payload_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"email.send: the payload is RenderInvoice, not SendEmail"):
        example_codec().encode("email.send", invoice())


def test_a_subclass_of_the_model_is_written_as_the_model() -> None:
    class Traced(SendEmail):
        trace: str = "abc"

    codec = example_codec()
    data = codec.encode("email.send", Traced(to="a", subject="b", body="c"))
    assert codec.decode("email.send", data) == SendEmail(to="a", subject="b", body="c")


def test_an_unregistered_job_type_is_named_with_those_that_are() -> None:
    codec = example_codec()
    for call in (
        lambda: codec.encode("email.sent", SendEmail(to="a", subject="b", body="c")),
        lambda: codec.decode("email.sent", b""),
    ):
        with pytest.raises(
            UnknownJobType, match=r"'email.sent' is not registered; known: email.send, invoice.render"
        ):
            call()


# --- for people ------------------------------------------------------------------------------------------


def test_describe_shows_the_payload_as_its_writer_saw_it() -> None:
    first, _ = SchemaCatalog(SCHEMAS).versions("invoice.render")
    codec = AvroCodec(SchemaCatalog(SCHEMAS))  # nothing registered: an operator's tool
    shown = codec.describe("invoice.render", framed(first, invoice().model_dump()))
    assert shown == {
        "schema": "invoice.render v1",
        "fingerprint": "910dbf6c2f7e4fa9",
        "payload": {
            "invoice_id": "0198a1c2-7d5e-7cc3-98c4-dc0c0c07398f",
            "issued_at": "2026-01-31T12:00:00.123456+00:00",
            "currency": "EUR",
            "total_cents": 129900,
            "customer": "Fennel & Rook Ltd",
            "template": "standard",
            "copies": 2,
            "due_in_days": 30,
            "lines": ["3 x garden chair", "delivery"],
            "labels": {"region": "north"},
        },
    }


def test_describe_gives_plain_json_for_every_type(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, Everything, record(EVERYTHING))
    shown = codec.describe(JOB, codec.encode(JOB, everything(ratio=float("nan"))))["payload"]
    assert isinstance(shown, dict)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["raw"] == "AP8="
    assert shown["amount"] == "12.50"
    assert shown["day"] == "2026-02-03"
    assert shown["ratio"] == "nan"
    assert shown["point"] == {"x": 1.5, "colour": "red"}


def test_describe_of_a_version_that_is_not_packaged_says_so(tmp_path: Path) -> None:
    shown = v1_only(tmp_path, **{V2_FINGERPRINT: V2_TEXT}).describe("email.send", v2_email())
    assert shown["schema"] == "pipeline.examples.SendEmail, a version that is not packaged here"
    assert shown["payload"] == {
        "to": "ada@example.org",
        "subject": "Hi",
        "body": "Hello",
        "cc": ["bo@example.org"],
        "reply_to": "x",
    }


def test_describe_of_a_job_type_without_schemas_is_a_schema_error() -> None:
    with pytest.raises(SchemaError, match=r"'no.such' has no schema"):
        example_codec().describe("no.such", b"")
