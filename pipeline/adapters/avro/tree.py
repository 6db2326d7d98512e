"""Walking parsed Avro schemas: small helpers that know the shapes fastavro leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "PRIMITIVES",
    "Named",
    "Schema",
    "Sides",
    "children",
    "counterparts",
    "describe_type",
    "kind",
    "resolve",
]

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


class Sides(NamedTuple):
    """The same place in two schemas."""

    path: str
    one: Schema
    other: Schema


def counterparts(one: Schema, named: Named, other: Schema, other_named: Named) -> Iterator[Sides]:
    """Every place that both schemas have, from the outside in. Fields are matched by name, branches by their type.

    A pair of named types is looked into once, or a short text could double for ever.
    """
    seen: set[tuple[str, str]] = set()

    def walk(one: Schema, other: Schema, path: str) -> Iterator[Sides]:
        one, other = resolve(one, named), resolve(other, other_named)
        yield Sides(path[1:], one, other)
        names = (_name(one), _name(other))
        if all(names):
            if names in seen:
                return
            seen.add(names)
        theirs = _steps(other, other_named)
        for step, child in _steps(one, named).items():
            if step in theirs:
                yield from walk(child, theirs[step], path + (step if step.startswith(".") else ""))

    return walk(one, other, "")


def _name(schema: Schema) -> str:
    return str(schema.get("name", "")) if isinstance(schema, dict) else ""


def _steps(schema: Schema, named: Named) -> Mapping[str, Schema]:
    """The schemas inside, by a key that finds the counterpart in another version."""
    if isinstance(schema, list):
        branches = (resolve(branch, named) for branch in schema)
        return {f"|{_name(branch) or kind(branch)}": branch for branch in branches}
    if not isinstance(schema, dict):
        return {}
    inside = {f".{field['name']}": field["type"] for field in schema.get("fields", ())}
    return inside | {f"<{key}>": schema[key] for key in ("items", "values") if key in schema}


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
    return f"{schema['type']}{inner}{_logical(schema)}"


def _logical(schema: Mapping[str, Any]) -> str:
    if "logicalType" not in schema:
        return ""
    digits = (
        f" of {schema['precision']} digits, {schema.get('scale', 0)} after the point"
        if "precision" in schema
        else ""
    )
    return f" ({schema['logicalType']}{digits})"
