"""Schemas that no payload may be decoded with, because a few bytes could crash or stall the process.

- A type that contains itself: fastavro recurses in C without a limit, so a payload of some thousand bytes
  overflows the stack and kills the process (seen). A chain of named types does the same, hence a depth limit.
- A nested value of no width (null outside a union, a record without fields): an array of them grows to
  millions of items from five bytes (seen). Without such types every item costs a byte, and the end of the
  payload is the bound.
"""

from __future__ import annotations

from pipeline.adapters.avro.tree import PRIMITIVES, Named, Schema, children, kind, resolve
from pipeline.errors import SchemaError

__all__ = ["may_skip_for_ever", "refuse_unsafe"]

MAX_DEPTH = 64
_FIXED = frozenset({"boolean", "float", "double", "fixed"})
_KNOWN = PRIMITIVES | {"record", "enum", "fixed", "array", "map", "union"}


def refuse_unsafe(schema: Schema, named: Named, *, source: str) -> None:
    """Raise `SchemaError`, starting with `source` and naming the place, unless decoding is bounded."""
    walk = _Walk(named, source)
    height = walk.height(schema, "")
    if height > MAX_DEPTH:
        walk.refuse("", f"nests {height} types deep; {MAX_DEPTH} is the limit")


def may_skip_for_ever(schema: Schema, named: Named) -> bool:
    """Whether a reader that skips a value of this type may go on past the end of the payload: over items of fixed width.

    Of any other item there is a length, a count or a number to be read, which is missed at the end. For a safe schema.
    """
    known: dict[
        str, tuple[bool, bool]
    ] = {}  # a named type is looked into once, or a short text could double for ever

    def look(schema: Schema) -> tuple[bool, bool]:
        """Whether it has a fixed width, and whether it may be skipped for ever."""
        definition = resolve(schema, named)
        name = str(definition.get("name", "")) if isinstance(definition, dict) else ""
        if name in known:
            return known[name]
        inside = [look(child) for _, child in children(definition)]
        all_fixed = all(fixed for fixed, _ in inside)
        fixed = kind(definition) in _FIXED or (kind(definition) == "record" and all_fixed)
        endless = any(endless for _, endless in inside) or (kind(definition) == "array" and all_fixed)
        if name:
            known[name] = fixed, endless
        return fixed, endless

    return look(schema)[1]


class _Walk:
    def __init__(self, named: Named, source: str) -> None:
        self._named = named
        self._source = source
        self._open: list[str] = []
        self._heights: dict[str, int] = {}

    def height(self, schema: Schema, path: str) -> int:
        """How deep this type nests. Each named type is visited once, or a short text could double forever."""
        definition = resolve(schema, self._named)
        name = definition.get("name") if isinstance(definition, dict) else None
        if name in self._open:
            self.refuse(path, f"{name} contains itself: use a list of plain values or ids instead")
        if name in self._heights:
            return self._heights[name]
        self._refuse_kind(definition, path)
        height = self._height_inside(definition, path, name)
        if name is not None:
            self._heights[name] = height
        return height

    def _height_inside(self, definition: Schema, path: str, name: str | None) -> int:
        if name is not None:
            self._open.append(name)
        inside = [
            self.height(child, path + step)
            for step, child in children(definition)
            # In a union null has a width: the branch number.
            if not (isinstance(definition, list) and kind(child) == "null")
        ]
        if name is not None:
            self._open.pop()
        return 1 + max(inside, default=0)

    def _refuse_kind(self, definition: Schema, path: str) -> None:
        type_ = kind(definition)
        if type_ not in _KNOWN:
            self.refuse(path, f"the type {type_!r} has no place in a payload")
        if type_ == "null":
            self.refuse(path, "null is allowed only inside a union")
        # The payload itself may be empty: it is one record, never an item.
        if (
            path
            and isinstance(definition, dict)
            and (definition.get("fields") == [] or definition.get("size", 1) < 1)
        ):
            self.refuse(path, f"{definition['name']} is empty: a value of no width is not allowed here")

    def refuse(self, path: str, reason: str) -> None:
        place = f"field {path.lstrip('.')!r}: " if path else ""
        raise SchemaError(f"{self._source}: {place}{reason}")
