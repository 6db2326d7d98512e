from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NaiveDatetime,
    PositiveInt,
    RootModel,
    SecretStr,
    create_model,
)

from pipeline.errors import SchemaError
from tests.unit.avro_examples import EVERYTHING, Colour, Everything, Point, codec_of, record

JOB = "some.job"
MOMENT = EVERYTHING["moment"]
POINT = EVERYTHING["point"]
COLOUR = EVERYTHING["colour"]
CustomerId = NewType("CustomerId", str)


class Shade(Enum):
    RED = "red"
    GREEN = "green"


class Level(IntEnum):
    LOW = 1


def model_with(annotation: Any) -> type[BaseModel]:
    return create_model("Model", value=(annotation, ...))


@pytest.mark.parametrize(
    ("annotation", "type_"),
    [
        (Annotated[str, Field(min_length=3)], "string"),
        (CustomerId, "string"),
        (PositiveInt, "int"),
        (list[Annotated[int, Field(ge=0)]], {"type": "array", "items": "long"}),
        (dict[Annotated[str, Field(max_length=9)], CustomerId], {"type": "map", "values": "string"}),
        (Annotated[int, Field(ge=0)] | None, ["long", "null"]),
        (AwareDatetime, MOMENT),
        (AwareDatetime | None, ["null", MOMENT]),
        (str, {"type": "string"}),
        (Decimal, {"type": "bytes", "logicalType": "decimal", "precision": 5}),
    ],
)
def test_constraints_and_new_types_do_not_matter_to_avro(tmp_path: Path, annotation: Any, type_: Any) -> None:
    codec_of(tmp_path, model_with(annotation), record({"value": type_}))


@pytest.mark.parametrize(
    ("annotation", "type_", "complaint"),
    [
        (int, "string", "is string, but int in the model"),
        (str, "int", "is int, but str in the model"),
        (bool, "int", "is int, but bool in the model"),
        (int, "boolean", "is boolean, but int in the model"),
        (float, "float", "is float, but float in the model; models may use"),
        (int, "double", "is double, but int in the model"),
        (bytes, "string", "is string, but bytes in the model"),
        (bytes, {"type": "fixed", "name": "F", "size": 4}, r"is fixed test\.F, but bytes in the model"),
        (datetime, "long", "is long, but datetime in the model"),
        (datetime, {"type": "long", "logicalType": "timestamp-millis"}, r"is long \(timestamp-millis\), but datetime"),
        (int, MOMENT, r"is long \(timestamp-micros\), but int"),
        (date, MOMENT, r"is long \(timestamp-micros\), but date"),
        (NaiveDatetime, MOMENT, "NaiveDatetime"),
        (str, EVERYTHING["ident"], r"is string \(uuid\), but str"),
        (Decimal, "bytes", "is bytes, but Decimal in the model"),
        (Decimal, {"type": "bytes", "logicalType": "decimal", "precision": 5000}, r"is bytes \(decimal of 5000 digits, 0 after the point\), but Decimal"),
        (str | None, "string", r"is string, but str \| None in the model"),
        (str, ["null", "string"], "is union of null, string, but str in the model"),
        (str | int, ["string", "int"], r"is union of string, int, but str \| int"),
        (str | int | None, ["null", "string", "int"], "is union of null, string, int"),
        (list[str], {"type": "array", "items": "int"}, r"field 'value\[\]' is int, but str"),
        (dict[str, str], {"type": "map", "values": "int"}, r"field 'value\{\}' is int, but str"),
        (list, {"type": "array", "items": "int"}, "is array of int, but list in the model"),
        (tuple[int, ...], {"type": "array", "items": "int"}, r"but tuple\[int, \.\.\.\] in the model"),
        (set[int], {"type": "array", "items": "int"}, r"but set\[int\] in the model"),
        (dict[int, str], {"type": "map", "values": "string"}, r"but dict\[int, str\] in the model"),
        (Shade, COLOUR, r"is enum test\.Colour \(red, blue\), but Shade \(red, green\) in the model"),
        (Level, COLOUR, r"but Level \(1\) in the model"),
        (Colour, "string", r"is string, but Colour \(red, blue\)"),
        (Literal["red", "blue"], COLOUR, r"but Literal\['red', 'blue'\]"),
        (Literal["a"], "string", r"but Literal\['a'\]"),
        (SecretStr, "string", "but SecretStr in the model"),
        (Any, "string", "but Any in the model"),
        (Point, {"type": "map", "values": "int"}, "is map of int, but Point"),
        (dict[str, int], POINT, r"is record test\.Point, but dict\[str, int\]"),
    ],
)  # fmt: skip
def test_a_type_that_differs_is_refused_with_field_both_types_and_file(
    tmp_path: Path, annotation: Any, type_: Any, complaint: str
) -> None:
    # Optional types refer to the enum by name, so it must exist.
    with pytest.raises(SchemaError, match=complaint) as caught:
        codec_of(
            tmp_path, model_with(annotation), record({"value": type_}) if type_ is not POINT else nested()
        )
    message = str(caught.value)
    assert message.startswith(str(tmp_path / JOB / "v1.avsc") + ": field 'value")
    assert "models may use str, int, float, bool, bytes, UUID" in message


def nested() -> dict[str, Any]:
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}, {"name": "colour", "type": COLOUR}]}  # fmt: skip
    return record({"value": point})


def test_a_field_that_only_the_schema_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"v1\.avsc: field 'more' is int, but Model has no such field"):
        codec_of(tmp_path, model_with(str), record({"value": "string", "more": "int"}))


def test_a_field_that_only_the_model_has_is_refused(tmp_path: Path) -> None:
    model = create_model("Model", value=(str, ...), more=(int | None, None))
    with pytest.raises(SchemaError, match=r"v1\.avsc: field 'more' is missing, but int \| None in Model"):
        codec_of(tmp_path, model, record({"value": "string"}))


def test_differences_inside_nested_models_are_named_by_path(tmp_path: Path) -> None:
    class Wrong(BaseModel):
        x: int
        colour: Colour

    for annotation, schema in (
        (Wrong, nested()),
        (list[Wrong], record({"value": {"type": "array", "items": nested()["fields"][0]["type"]}})),
    ):
        with pytest.raises(SchemaError, match=r"field 'value(\[\])?\.x' is double, but int in the model"):
            codec_of(tmp_path, model_with(annotation), schema)


def test_models_that_would_lose_values_are_refused(tmp_path: Path) -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        value: str

    with pytest.raises(SchemaError, match="Open allows extra fields, which would be lost"):
        codec_of(tmp_path, Open, record({"value": "string"}))
    with pytest.raises(SchemaError, match=r"the payload is a record, but RootModel\[int\] is a RootModel"):
        codec_of(tmp_path, RootModel[int], record({"root": "int"}))


def test_an_alias_needs_a_model_that_can_be_filled_by_name(tmp_path: Path) -> None:
    class Aliased(BaseModel):
        value: str = Field(alias="Value")

    with pytest.raises(
        SchemaError, match="field 'value' is read by its name, but has an alias: set populate_by"
    ):
        codec_of(tmp_path, Aliased, record({"value": "string"}))


@pytest.mark.parametrize(
    ("type_", "annotation", "default"),
    [
        (MOMENT, datetime, 0),
        (EVERYTHING["day"], date, 0),
        ("bytes", bytes, "\u00ff"),
        (EVERYTHING["amount"], Decimal, "\u0001"),
        ([MOMENT, "null"], datetime | None, 0),
        ({"type": "map", "values": "bytes"}, dict[str, bytes], {"a": "\u00ff"}),
    ],
)
def test_a_default_that_fastavro_would_fill_in_raw_is_refused(
    tmp_path: Path, type_: Any, annotation: Any, default: Any
) -> None:
    with pytest.raises(SchemaError, match="field 'value' is given a default, which is not possible with"):
        codec_of(tmp_path, model_with(annotation), record({"value": (type_, default)}))


@pytest.mark.parametrize(
    ("type_", "annotation", "default", "read"),
    [
        (["null", MOMENT], datetime | None, None, None),
        ({"type": "array", "items": MOMENT}, list[datetime], [], []),
        ("string", str, "ä", "ä"),
        ("double", float, 1.5, 1.5),
        (COLOUR, Colour, "blue", Colour.BLUE),
        ({"type": "map", "values": "int"}, dict[str, int], {"a": 1}, {"a": 1}),
    ],
)
def test_other_defaults_fill_in_what_old_payloads_lack(
    tmp_path: Path, type_: Any, annotation: Any, default: Any, read: Any
) -> None:
    model = create_model("Model", first=(int, ...), value=(annotation, ...))
    old = codec_of(tmp_path / "old", create_model("Model", first=(int, ...)), record({"first": "int"}))
    new = codec_of(tmp_path / "new", model, record({"first": "int"}), record({"first": "int", "value": (type_, default)}))  # fmt: skip
    old_model = create_model("Model", first=(int, ...))
    old.register(JOB, old_model)
    decoded = new.decode(JOB, old.encode(JOB, old_model(first=1)))
    assert decoded == model(first=1, value=read)


def test_a_default_is_never_shared_between_payloads(tmp_path: Path) -> None:
    class Listed(BaseModel):
        first: int
        value: list[int]

    class Old(BaseModel):
        first: int

    schema = record({"first": "int", "value": ({"type": "array", "items": "int"}, [])})
    data = codec_of(tmp_path / "old", Old, record({"first": "int"})).encode(JOB, Old(first=1))
    codec = codec_of(tmp_path / "new", Listed, record({"first": "int"}), schema)
    decoded = codec.decode(JOB, data)
    assert isinstance(decoded, Listed)
    decoded.value.append(5)
    assert codec.decode(JOB, data) == Listed(first=1, value=[])


def test_only_the_newest_version_must_fit_the_model(tmp_path: Path) -> None:
    assert codec_of(tmp_path, Everything, record({"text": "string"}), record(EVERYTHING))
