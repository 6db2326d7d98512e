"""Logical types when reading: which are understood, how decimals are bounded, where versions must agree.

fastavro applies the logical type of the *writer*, and turns bytes into a decimal of any size: a payload of a
megabyte took 100 seconds. So schemas are rewritten before they are used for reading: decimals go through the
bounded reader below, types that this package does not know stay plain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

from fastavro.read import LOGICAL_READERS

from pipeline.adapters.avro.parsing import ParsedSchema, parse_record
from pipeline.adapters.avro.tree import Schema, counterparts, describe_type

__all__ = [
    "MAX_PRECISION",
    "bounded_decimal",
    "disagreement",
    "logical_type",
    "reading_form",
    "writing_form",
]

MAX_PRECISION = 1000
_PLAIN = {
    ("string", "uuid"),
    ("int", "date"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
}
_BOUNDED_DECIMAL = "pipeline-decimal"
_EXACT = Context(prec=MAX_PRECISION)


def logical_type(schema: Schema) -> str | None:
    """The logical type that this package honours on this type; None for a plain or an unknown one."""
    if not isinstance(schema, dict):
        return None
    name = str(schema.get("logicalType"))
    if name == "decimal" and schema["type"] == "bytes":
        return name if _is_decimal(schema) else None
    return name if (schema["type"], name) in _PLAIN else None


def reading_form(schema: ParsedSchema) -> dict[str, Any]:
    """The schema to decode with: the same bytes, and only logical types that are safe."""
    form, _ = parse_record(_map_logical(json.loads(schema.text), _for_reading))
    return form


def writing_form(schema: ParsedSchema) -> dict[str, Any]:
    """The schema to encode with, from values that are prepared: the same bytes, and no logical types but decimals.

    What a preparer has checked it converts, too; fastavro would look once more, and take a quarter longer.
    """
    form, _ = parse_record(_map_logical(json.loads(schema.text), _for_writing))
    return form


def disagreement(one: ParsedSchema, other: ParsedSchema) -> str | None:
    """Where two versions give the same place another logical type, which no Avro check would notice."""
    for path, a, b in counterparts(one.schema, one.named, other.schema, other.named):
        if _meaning(a) != _meaning(b):
            return f"field {path!r} is {describe_type(a)} in one and {describe_type(b)} in the other"
    return None


def _meaning(schema: Schema) -> tuple[str | None, int]:
    name = logical_type(schema)
    scale = schema.get("scale", 0) if name == "decimal" and isinstance(schema, dict) else 0
    return name, scale


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    return isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= MAX_PRECISION


def _map_logical(node: Schema, change: Callable[[Mapping[str, Any]], str]) -> Schema:
    """A copy with other logical types."""
    if isinstance(node, list):
        return [_map_logical(branch, change) for branch in node]
    if isinstance(node, str):
        return node
    copy = {
        key: _map_logical(value, change) if key in ("items", "values") else value
        for key, value in node.items()
    }
    if "fields" in node:
        copy["fields"] = [{**field, "type": _map_logical(field["type"], change)} for field in node["fields"]]
    if "logicalType" in node:
        copy["logicalType"] = change(node)
    return copy


def _for_reading(node: Mapping[str, Any]) -> str:
    honoured = logical_type(dict(node))
    return _BOUNDED_DECIMAL if honoured == "decimal" else honoured or "none"


def _for_writing(node: Mapping[str, Any]) -> str:
    return "decimal" if logical_type(dict(node)) == "decimal" else "none"


def bounded_decimal(data: bytes, precision: int, scale: int) -> Decimal:
    """Bytes to a decimal, refused with `ValueError` when it has more digits than declared. The length is checked first."""
    if len(data) <= _bytes_for(precision):
        number = Decimal(int.from_bytes(data, "big", signed=True))
        if number.adjusted() < precision:
            return number.scaleb(-scale, _EXACT)
    raise ValueError(f"a decimal of {len(data)} bytes exceeds its precision of {precision} digits")


def _read_decimal(data: bytes, writer_schema: Mapping[str, Any] | None, _reader_schema: object) -> Decimal:
    assert writer_schema is not None
    return bounded_decimal(data, writer_schema["precision"], writer_schema.get("scale", 0))


def _bytes_for(precision: int) -> int:
    # 10 ** n needs at most 3.33 n bits; one bit for the sign, rounded up to whole bytes.
    return (precision * 333 // 100 + 9) // 8


# fastavro's own way to teach it a logical type. The name is ours, so nobody else's decimals change.
LOGICAL_READERS[f"bytes-{_BOUNDED_DECIMAL}"] = _read_decimal
