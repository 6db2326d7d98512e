"""One Avro schema: its text, its parsed form and its fingerprint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from pipeline.adapters.avro.safety import refuse_unsafe
from pipeline.adapters.avro.tree import Named, Schema
from pipeline.errors import SchemaError

__all__ = ["ParsedSchema", "parse", "parse_record"]


@dataclass(frozen=True, kw_only=True)
class ParsedSchema:
    """A record schema that is safe to decode with. `fingerprint` is CRC-64-AVRO as on the wire, 8 bytes."""

    text: str = field(repr=False)
    schema: dict[str, Any] = field(repr=False, compare=False)
    named: Named = field(repr=False, compare=False)
    fingerprint: bytes
    fullname: str

    @property
    def label(self) -> str:
        """What people call it in messages."""
        return f"{self.fullname}, a version that is not packaged here"


def parse(text: str, source: str) -> ParsedSchema:
    """Parse a schema's text. Raises `SchemaError` that starts with `source` (a file, or who sent the text)."""
    try:
        schema, named = parse_record(json.loads(text))
        # fastavro returns the hex of the little-endian bytes: exactly those of the wire.
        digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    except Exception as error:  # fastavro raises anything from KeyError to RecursionError
        raise SchemaError(f"{source}: not a valid Avro schema: {type(error).__name__}: {error}") from error
    refuse_unsafe(schema, named, source=source)
    return ParsedSchema(
        text=text, schema=schema, named=named, fingerprint=bytes.fromhex(digest), fullname=schema["name"]
    )


def parse_record(document: Schema) -> tuple[dict[str, Any], Named]:
    """Parse a decoded schema document, and give its named types by full name."""
    named: Named = {}
    schema = parse_schema(document, named)
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise ValueError("a payload schema must be a record")
    return schema, named
