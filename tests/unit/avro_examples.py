"""Models and helpers shared by the tests of the Avro codec."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

from fastavro import parse_schema, schemaless_writer
from pydantic import BaseModel

from pipeline.adapters.avro import AvroCodec, SchemaCatalog, SchemaVersion
from pipeline.demo.jobs import Currency, RenderInvoice, SendEmail

SCHEMAS = Path(__file__).parents[2] / "schemas"


class Colour(Enum):
    """Not a `str`: its members must be turned into symbols."""

    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: float
    colour: Colour


class Everything(BaseModel):
    """Every supported type, flat, nested and optional."""

    text: str
    small: int
    large: int
    ratio: float
    flag: bool
    raw: bytes
    ident: UUID
    day: date
    moment: datetime
    amount: Decimal
    colour: Colour
    point: Point
    points: list[Point]
    tallies: dict[str, list[int]]
    maybe_small: int | None
    maybe_moment: datetime | None
    maybe_amount: Decimal | None
    maybe_colour: Colour | None
    maybe_point: Point | None
    maybe_list: list[Point] | None


_COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}
_POINT_FIELDS = [{"name": "x", "type": "double"}, {"name": "colour", "type": "Colour"}]
_MOMENT = {"type": "long", "logicalType": "timestamp-micros"}
_AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

EVERYTHING: dict[str, Any] = {
    "text": "string",
    "small": "int",
    "large": "long",
    "ratio": "double",
    "flag": "boolean",
    "raw": "bytes",
    "ident": {"type": "string", "logicalType": "uuid"},
    "day": {"type": "int", "logicalType": "date"},
    "moment": _MOMENT,
    "amount": _AMOUNT,
    "colour": _COLOUR,
    "point": {"type": "record", "name": "Point", "fields": _POINT_FIELDS},
    "points": {"type": "array", "items": "Point"},
    "tallies": {"type": "map", "values": {"type": "array", "items": "int"}},
    "maybe_small": ["null", "int"],
    "maybe_moment": [_MOMENT, "null"],
    "maybe_amount": ["null", _AMOUNT],
    "maybe_colour": ["null", "Colour"],
    "maybe_point": ["null", "Point"],
    "maybe_list": ["null", {"type": "array", "items": "Point"}],
}


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "text": "hello",
        "small": -7,
        "large": 2**40,
        "ratio": 0.1,
        "flag": True,
        "raw": b"\x00\xff",
        "ident": UUID(int=5),
        "day": date(2026, 2, 3),
        "moment": datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC),
        "amount": Decimal("12.50"),
        "colour": Colour.BLUE,
        "point": Point(x=1.5, colour=Colour.RED),
        "points": [Point(x=2.5, colour=Colour.BLUE)],
        "tallies": {"a": [1, 2], "b": []},
        "maybe_small": None,
        "maybe_moment": None,
        "maybe_amount": None,
        "maybe_colour": None,
        "maybe_point": None,
        "maybe_list": None,
    }
    return Everything(**values | changes)


def invoice(**changes: Any) -> RenderInvoice:
    values: dict[str, Any] = {
        "invoice_id": UUID("0198a1c2-7d5e-7cc3-98c4-dc0c0c07398f"),
        "issued_at": datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        "currency": Currency.EUR,
        "total_cents": 129_900,
        "customer": "Fennel & Rook Ltd",
        "template": "standard",
        "copies": 2,
        "due_in_days": 30,
        "lines": ["3 x garden chair", "delivery"],
        "labels": {"region": "north"},
    }
    return RenderInvoice(**values | changes)


def record(fields: dict[str, Any], *, name: str = "Payload", **extra: Any) -> dict[str, Any]:
    """A record schema; a field is its type, or `(type, default)`."""
    described = [
        {"name": field, "type": type_[0], "default": type_[1]}
        if isinstance(type_, tuple)
        else {"name": field, "type": type_}
        for field, type_ in fields.items()
    ]
    return {"type": "record", "name": name, "namespace": "test", "fields": described} | extra


def catalog_of(folder: Path, *versions: dict[str, Any], job_type: str = "some.job") -> SchemaCatalog:
    """Write the schemas as v1, v2 and so on, and read them."""
    directory = folder / job_type
    directory.mkdir(parents=True, exist_ok=True)
    for number, schema in enumerate(versions, start=1):
        (directory / f"v{number}.avsc").write_text(json.dumps(schema), encoding="utf-8")
    return SchemaCatalog(folder)


def codec_of(
    folder: Path, model: type[BaseModel], *versions: dict[str, Any], job_type: str = "some.job"
) -> AvroCodec:
    """A codec with the model registered against the last of the schemas."""
    codec = AvroCodec(catalog_of(folder, *versions, job_type=job_type))
    codec.register(job_type, model)
    return codec


def example_codec() -> AvroCodec:
    """A codec over the schemas of this repository, both example job types registered."""
    codec = AvroCodec(SchemaCatalog(SCHEMAS))
    codec.register("email.send", SendEmail)
    codec.register("invoice.render", RenderInvoice)
    return codec


def framed(version: SchemaVersion, values: dict[str, Any]) -> bytes:
    """What a publisher that knows only this version would have written."""
    return b"\xc3\x01" + version.fingerprint + bare(json.loads(version.text), values)


def assert_stands_alone(error: BaseException) -> None:
    """No other error behind it: what a decoder or a validator raises quotes the payload."""
    assert error.__cause__ is None
    assert error.__context__ is None


def bare(schema: Any, values: Any) -> bytes:
    buffer = BytesIO()
    schemaless_writer(buffer, parse_schema(schema), values)
    return buffer.getvalue()
