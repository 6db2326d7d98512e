"""Generated payloads: extreme and plain values of every type, enough to find what one version writes and another cannot read."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

from fastavro import schemaless_writer

from pipeline.adapters.avro.logical import MAX_PRECISION, logical_type
from pipeline.adapters.avro.parsing import ParsedSchema
from pipeline.adapters.avro.tree import Named, Schema, kind, resolve

__all__ = ["sample_payloads"]

_TEXTS = ("", "plain", "ünïcode 漢字 🎈", "line\nbreak\x00", "x" * 300)
_BYTES = (b"", b"plain", b"\x00\xff\xfe", bytes(range(256)))
_FLOATS = (0.0, -1.5, 1e300, -1e-300)
# Within what Python's own types can hold: the years 1 to 9999.
_RANGES = {
    "date": (-719_162, 2_932_896),
    "timestamp-millis": (-62_135_596_800_000, 253_402_300_799_999),
    "timestamp-micros": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
_LONGEST = 3
_EXACT = Context(prec=MAX_PRECISION)


def sample_payloads(schema: ParsedSchema, count: int, *, seed: int = 1) -> list[bytes]:
    """Payloads as a publisher of that version may write them, without a frame; the same for the same seed."""
    maker = _Maker(schema.named, random.Random(seed))  # noqa: S311 - not for secrets
    return [_bare(schema, maker.value(schema.schema)) for _ in range(count)]


def _bare(schema: ParsedSchema, value: Any) -> bytes:
    buffer = BytesIO()
    schemaless_writer(buffer, schema.schema, value)
    return buffer.getvalue()


class _Maker:
    def __init__(self, named: Named, rng: random.Random) -> None:
        self._named = named
        self._rng = rng

    def value(self, schema: Schema) -> Any:
        schema = resolve(schema, self._named)
        if isinstance(schema, list):
            return self._branch(schema)
        if isinstance(schema, dict) and schema["type"] in ("record", "enum", "array", "map", "fixed"):
            return self._inside(schema)
        return self._scalar(schema)

    def _branch(self, schema: list[Any]) -> Any:
        branch = resolve(self._rng.choice(schema), self._named)
        if kind(branch) == "null":
            return None
        # Told outright: fastavro would take the first branch that the value may be.
        name = branch.get("name") if isinstance(branch, dict) else None
        return (name or kind(branch), self.value(branch))

    def _inside(self, schema: dict[str, Any]) -> Any:
        if schema["type"] == "record":
            return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
        if schema["type"] == "enum":
            return self._rng.choice(schema["symbols"])
        if schema["type"] == "fixed":
            return self._rng.randbytes(schema["size"])
        size = self._rng.randint(0, _LONGEST)
        if schema["type"] == "array":
            return [self.value(schema["items"]) for _ in range(size)]
        return {f"k{number}": self.value(schema["values"]) for number in range(size)}

    def _scalar(self, schema: Schema) -> Any:
        name, logical = kind(schema), logical_type(schema)
        if logical == "decimal" and isinstance(schema, dict):
            return self._decimal(schema["precision"], schema.get("scale", 0))
        if logical == "uuid":
            return UUID(int=self._rng.getrandbits(128))
        if logical in _RANGES:
            return self._integer(*_RANGES[logical])
        if name in ("int", "long"):
            limit = 2 ** (31 if name == "int" else 63)
            return self._integer(-limit, limit - 1)
        choices: dict[str, tuple[Any, ...]] = {
            "null": (None,),
            "boolean": (True, False),
            "bytes": _BYTES,
            "string": _TEXTS,
        }
        return self._rng.choice(choices.get(name, _FLOATS))

    def _integer(self, low: int, high: int) -> int:
        return self._rng.choice((low, high, 0 if low <= 0 <= high else low, self._rng.randint(low, high)))

    def _decimal(self, precision: int, scale: int) -> Decimal:
        most = 10**precision - 1
        return Decimal(self._integer(-most, most)).scaleb(-scale, _EXACT)
