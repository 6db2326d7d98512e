"""Walking parsed Avro schemas: small helpers that know the shapes fastavro leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

__all__ = ["PRIMITIVES", "Named", "Schema", "children", "describe_type", "kind", "resolve"]

Schema: TypeAlias = str | dict[str, Any] | list[Any]
Named: TypeAlias = dict[str, dict[str, Any]]

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def resolve(schema: Schema, named: Named) -> Schema:
    """The definition behind a name; anything else as it is."""
    if isinstance(schema, str) and schema not in PRIMITIVES:
        return named[schema]
    return schema


def kind(schema: Schema) -> str:
    """`record`, `union`, `long` and so on; for a reference, the name that it refers to."""
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


def children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas directly inside this one, each with its step in a path."""
    if isinstance(schema, list):
        yield from (("", branch) for branch in schema)
    elif isinstance(schema, dict):
        yield from ((f".{field['name']}", field["type"]) for field in schema.get("fields", ()))
        if "items" in schema:
            yield "[]", schema["items"]
        if "values" in schema:
            yield "{}", schema["values"]


def describe_type(schema: Schema) -> str:
    """The type as a person would say it: `long (timestamp-micros)`, `union of null, string`."""
    if isinstance(schema, list):
        return "union of " + ", ".join(describe_type(branch) for branch in schema)
    if isinstance(schema, str):
        return schema
    if "name" in schema:
        symbols = f" ({', '.join(schema['symbols'])})" if "symbols" in schema else ""
        return f"{schema['type']} {schema['name']}{symbols}"
    inner = "".join(f" of {describe_type(child)}" for _, child in children(schema))
    logical = f" ({schema['logicalType']})" if "logicalType" in schema else ""
    return f"{schema['type']}{inner}{logical}"
