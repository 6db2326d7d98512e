"""What changed between two versions of a payload, as `pipeline schemas diff` shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.adapters.avro.catalog import SchemaVersion
from pipeline.adapters.avro.parsing import ParsedSchema
from pipeline.adapters.avro.tree import Named, Schema, children, describe_type, resolve

__all__ = ["diff_lines"]


def diff_lines(before: SchemaVersion, after: SchemaVersion) -> Iterator[str]:
    """A line for each field that came (+), went (-) or changed (~)."""
    old, new = _fields(before), _fields(after)
    for path in [*old, *(path for path in new if path not in old)]:
        if path not in new:
            yield f"- {path}: {old[path]}"
        elif path not in old:
            yield f"+ {path}: {new[path]}"
        elif old[path] != new[path]:
            yield f"~ {path}: {old[path]} -> {new[path]}"
    if old == new:
        yield "no field differs"
    if before.fingerprint == after.fingerprint:
        yield "payloads of the two cannot be told apart: they have the same fingerprint"


def _fields(schema: ParsedSchema) -> dict[str, str]:
    """Every field, nested ones too, by its path: type and default as text."""
    found: dict[str, str] = {}

    def walk(node: Schema, path: str, inside: tuple[str, ...]) -> None:
        node = resolve(node, schema.named)
        name = str(node.get("name", "")) if isinstance(node, dict) else ""
        if name in inside:
            return
        if isinstance(node, dict):
            for field in node.get("fields", ()):
                found[f"{path}.{field['name']}".lstrip(".")] = _text(field, schema.named)
        for step, child in children(node):
            walk(child, path + step, (*inside, name) if name else inside)

    walk(schema.schema, "", ())
    return found


def _text(field: Mapping[str, Any], named: Named) -> str:
    default = f", default {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
    return describe_type(resolve(field["type"], named)) + default
