"""Are the defaults in a schema values of their types? Neither of the two parsers looks at all of them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.adapters.avro.logical import logical_type
from pipeline.adapters.avro.parsing import ParsedSchema
from pipeline.adapters.avro.tree import Named, Schema, children, describe_type, kind, resolve

__all__ = ["bad_defaults"]

_BITS = {"int": 32, "long": 64}
_PLAIN = {"string": str, "boolean": bool, "null": type(None)}


def bad_defaults(schema: ParsedSchema) -> Iterator[tuple[str, str]]:
    """Each field whose default is no value of its type, with what is wrong."""
    seen: set[str] = set()

    def walk(node: Schema, path: str) -> Iterator[tuple[str, str]]:
        node = resolve(node, schema.named)
        if isinstance(node, dict) and "name" in node:
            if node["name"] in seen:
                return
            seen.add(node["name"])
            yield from _of_fields(node, schema.named, path)
        for step, child in children(node):
            yield from walk(child, path + step)

    return walk(schema.schema, "")


def _of_fields(record: Mapping[str, Any], named: Named, path: str) -> Iterator[tuple[str, str]]:
    for field in record.get("fields", ()):
        if "default" not in field:
            continue
        type_ = resolve(field["type"], named)
        first = resolve(type_[0], named) if isinstance(type_, list) else type_
        if not _fits(field["default"], first, named):
            what = f"the default {field['default']!r} is no {describe_type(first)}"
            yield f"{path}.{field['name']}".lstrip("."), what


def _fits(value: Any, schema: Schema, named: Named) -> bool:
    schema = resolve(schema, named)
    name = kind(schema)
    if name in _BITS:
        limit = 2 ** (_BITS[name] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if name in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name in _PLAIN:
        return isinstance(value, _PLAIN[name]) and (logical_type(schema) != "uuid" or _is_uuid(value))
    if name in ("bytes", "fixed"):
        return _is_bytes(value, schema.get("size") if isinstance(schema, dict) else None)
    return isinstance(schema, dict) and _fits_inside(value, schema, named)


def _fits_inside(value: Any, schema: Mapping[str, Any], named: Named) -> bool:
    if schema["type"] == "enum":
        return value in schema["symbols"]
    if schema["type"] == "array":
        return isinstance(value, list) and all(_fits(item, schema["items"], named) for item in value)
    if not isinstance(value, dict):
        return False
    if schema["type"] == "map":
        return all(_fits(item, schema["values"], named) for item in value.values())
    return all(_fits_field(value, field, named) for field in schema["fields"])


def _fits_field(record: Mapping[str, Any], field: Mapping[str, Any], named: Named) -> bool:
    if field["name"] not in record:
        return "default" in field
    type_ = resolve(field["type"], named)
    return _fits(record[field["name"]], type_[0] if isinstance(type_, list) else type_, named)


def _is_bytes(value: Any, size: int | None) -> bool:
    """Bytes stand in JSON as text, a character each."""
    return isinstance(value, str) and all(ord(one) < 256 for one in value) and size in (None, len(value))


def _is_uuid(value: object) -> bool:
    try:
        uuid.UUID(str(value))
    except ValueError:
        return False
    return True
