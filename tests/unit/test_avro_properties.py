"""Generated models and bytes against the codec: nothing is lost, and nothing but our errors comes out."""

from __future__ import annotations

import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.demo.jobs import Currency, RenderInvoice, SendEmail
from pipeline.errors import InvalidJob, PayloadError
from tests.unit.avro_examples import (
    EVERYTHING,
    SCHEMAS,
    Colour,
    Everything,
    Point,
    codec_of,
    everything,
    example_codec,
    framed,
    invoice,
    record,
)

JOB = "some.job"
PATIENT = settings(deadline=None)
# Generous, as the machine may be busy; what this must catch takes minutes.
BOUNDED = settings(max_examples=400, deadline=5000)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False)
MOMENT = st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31))  # noqa: DTZ001 - hypothesis wants these naive
AMOUNT = st.decimals(-9_999_999, 9_999_999, places=2)
POINT = st.builds(Point, x=FLOAT, colour=st.sampled_from(Colour))

EMAILS = st.builds(
    SendEmail, to=TEXT, subject=TEXT, body=TEXT, cc=st.lists(TEXT, max_size=5), reply_to=st.none() | TEXT
)
INVOICES = st.builds(
    RenderInvoice,
    invoice_id=st.uuids(),
    issued_at=MOMENT,
    currency=st.sampled_from(Currency),
    total_cents=LONG,
    customer=TEXT,
    template=TEXT,
    copies=INT,
    due_in_days=INT,
    lines=st.lists(TEXT, max_size=5),
    labels=st.dictionaries(TEXT, TEXT, max_size=5),
    purchase_order=st.none() | TEXT,
    footer=TEXT,
)
EVERYTHINGS = st.builds(
    Everything,
    text=TEXT,
    small=INT,
    large=LONG,
    ratio=FLOAT,
    flag=st.booleans(),
    raw=st.binary(max_size=20),
    ident=st.uuids(),
    day=st.dates(),
    moment=MOMENT,
    amount=AMOUNT,
    colour=st.sampled_from(Colour),
    point=POINT,
    points=st.lists(POINT, max_size=4),
    tallies=st.dictionaries(TEXT, st.lists(INT, max_size=4), max_size=4),
    maybe_small=st.none() | INT,
    maybe_moment=st.none() | MOMENT,
    maybe_amount=st.none() | AMOUNT,
    maybe_colour=st.none() | st.sampled_from(Colour),
    maybe_point=st.none() | POINT,
    maybe_list=st.none() | st.lists(POINT, max_size=4),
)


@cache
def everything_codec() -> AvroCodec:
    with tempfile.TemporaryDirectory() as folder:
        return codec_of(Path(folder), Everything, record(EVERYTHING))


@cache
def examples() -> AvroCodec:
    return example_codec()


@given(EMAILS)
@PATIENT
def test_every_email_survives(payload: SendEmail) -> None:
    assert examples().decode("email.send", examples().encode("email.send", payload)) == payload


@given(INVOICES)
@PATIENT
def test_every_invoice_survives(payload: RenderInvoice) -> None:
    assert examples().decode("invoice.render", examples().encode("invoice.render", payload)) == payload


@given(EVERYTHINGS)
@PATIENT
def test_every_value_of_every_supported_type_survives(payload: Everything) -> None:
    assert everything_codec().decode(JOB, everything_codec().encode(JOB, payload)) == payload


@given(INVOICES)
@PATIENT
def test_every_invoice_of_an_older_publisher_is_read_with_defaults(payload: RenderInvoice) -> None:
    first, _ = SchemaCatalog(SCHEMAS).versions("invoice.render")
    read = examples().decode("invoice.render", framed(first, payload.model_dump()))
    assert read == payload.model_copy(update={"purchase_order": None, "footer": ""})


class Kind(NamedTuple):
    """A Python type, its Avro type, and values of it."""

    annotation: Any
    avro: Any
    values: st.SearchStrategy[Any]


LEAVES = [
    Kind(str, "string", TEXT),
    Kind(int, "int", INT),
    Kind(int, "long", LONG),
    Kind(float, "double", FLOAT),
    Kind(bool, "boolean", st.booleans()),
    Kind(bytes, "bytes", st.binary(max_size=9)),
    Kind(UUID, EVERYTHING["ident"], st.uuids()),
    Kind(date, EVERYTHING["day"], st.dates()),
    Kind(datetime, EVERYTHING["moment"], MOMENT),
    Kind(Decimal, EVERYTHING["amount"], AMOUNT),
]


def _list_of(kind: Kind) -> Kind:
    annotation = GenericAlias(list, (kind.annotation,))
    return Kind(annotation, {"type": "array", "items": kind.avro}, st.lists(kind.values, max_size=3))


def _map_of(kind: Kind) -> Kind:
    annotation = GenericAlias(dict, (str, kind.annotation))
    values = st.dictionaries(TEXT, kind.values, max_size=3)
    return Kind(annotation, {"type": "map", "values": kind.avro}, values)


def _optional(kind: Kind) -> Kind:
    if isinstance(kind.avro, list):
        return kind
    return Kind(kind.annotation | None, ["null", kind.avro], st.none() | kind.values)


KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: inner.map(_list_of) | inner.map(_map_of) | inner.map(_optional),
    max_leaves=4,
)


@given(st.lists(KINDS, min_size=0, max_size=6), st.data())
@settings(max_examples=100, deadline=None)
def test_a_generated_model_and_its_schema_agree_and_its_values_survive(
    kinds: list[Kind], data: st.DataObject
) -> None:
    fields: dict[str, Any] = {f"f{number}": (kind.annotation, ...) for number, kind in enumerate(kinds)}
    model: type[BaseModel] = create_model("Generated", **fields)
    schema = record({f"f{number}": kind.avro for number, kind in enumerate(kinds)})
    values = {f"f{number}": data.draw(kind.values) for number, kind in enumerate(kinds)}
    with tempfile.TemporaryDirectory() as folder:
        codec = codec_of(Path(folder), model, schema)
    payload = model(**values)
    encoded = codec.encode(JOB, payload)
    assert codec.decode(JOB, encoded) == payload
    assert codec.describe(JOB, encoded)["schema"] == "some.job v1"


def decodes_or_is_refused(codec: AvroCodec, job_type: str, data: bytes, model: type[BaseModel]) -> None:
    """The whole promise about bad input; time and memory are bounded by the deadline of the test."""
    for call in (codec.decode, codec.describe):
        try:
            result = call(job_type, data)
        except PayloadError:
            continue
        assert isinstance(result, model | dict)


HEADERS = [version.fingerprint for job in ("email.send", "invoice.render") for version in SchemaCatalog(SCHEMAS).versions(job)]  # fmt: skip


@given(st.binary(max_size=200))
@BOUNDED
def test_random_bytes_are_refused(data: bytes) -> None:
    decodes_or_is_refused(examples(), "email.send", data, SendEmail)


@given(st.sampled_from(HEADERS), st.binary(max_size=200))
@BOUNDED
def test_random_bytes_behind_a_valid_header_are_refused_or_make_a_valid_model(
    fingerprint: bytes, body: bytes
) -> None:
    data = b"\xc3\x01" + fingerprint + body
    decodes_or_is_refused(examples(), "email.send", data, SendEmail)
    decodes_or_is_refused(examples(), "invoice.render", data, RenderInvoice)


@given(EVERYTHINGS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
@settings(BOUNDED, max_examples=200)
def test_damaged_bytes_are_refused_or_make_a_valid_model(
    payload: Everything, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(everything_codec().encode(JOB, payload))
    for place, byte in damage:
        data[10 + place % (len(data) - 10)] = byte
    decodes_or_is_refused(everything_codec(), JOB, bytes(data), Everything)


@given(st.binary(min_size=10, max_size=10), st.integers(0, 300), st.integers(0, 300))
@BOUNDED
def test_bytes_with_a_piece_cut_out_or_written_twice_are_refused_or_make_a_valid_model(
    noise: bytes, start: int, length: int
) -> None:
    data = everything_codec().encode(JOB, everything())
    start, end = start % len(data), (start + length) % len(data)
    for damaged in (data[:start] + data[end:], data[:start] + noise + data[start:]):
        decodes_or_is_refused(everything_codec(), JOB, damaged, Everything)


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.dates() | st.datetimes() | st.lists(st.integers(), max_size=2)  # fmt: skip


@given(st.sampled_from(sorted(EVERYTHING)), ANYTHING)
@BOUNDED
def test_whatever_is_put_into_a_model_is_written_faithfully_or_refused(field: str, value: Any) -> None:
    payload = everything().model_copy(update={field: value})
    try:
        data = everything_codec().encode(JOB, payload)
    except InvalidJob:
        return
    decoded = everything_codec().decode(JOB, data)
    written = getattr(decoded, field)
    assert written == value or (value != value and written != written)  # noqa: PLR0124 - NaN


@pytest.mark.timeout(120)
def test_a_megabyte_of_the_worst_bytes_takes_bounded_time() -> None:
    data = invoice()
    header = examples().encode("invoice.render", data)[:10]
    for body in (b"\xff", b"\x80", b"\x00", b"\x01", b"\x02", b"\x7f"):
        decodes_or_is_refused(examples(), "invoice.render", header + body * 1_000_000, RenderInvoice)
        longest = everything_codec().encode(JOB, everything())[:10]
        decodes_or_is_refused(everything_codec(), JOB, longest + body * 1_000_000, Everything)
