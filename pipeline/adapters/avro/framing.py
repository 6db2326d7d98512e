"""The bytes in front of a payload, which name the schema that it was written with.

Single-object encoding    C3 01, the schema's CRC-64-AVRO (8 bytes, little endian)      what is written by default
Registry prefix           00, the id (4 bytes, big endian)                              written with a registry
Registry GUID prefix      01, the GUID (16 bytes)
Registry header           nothing: the header `__value_schema_id` has one of the two prefixes

All four are read. Bare Avro without that header is never accepted: it can start with any byte, so it could not be told
from the other forms.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.core.writer_schemas import WriterRef
from pipeline.errors import PayloadError

__all__ = [
    "FRAME_SIZES",
    "HEADER_SIZE",
    "Frame",
    "frame_of",
    "header_of",
    "read_fingerprint",
    "registry_prefix",
]

HEADER_SIZE = 10
_MARKER = b"\xc3\x01"
FRAME_SIZES = {b"\x00": 5, b"\x01": 17}  # by the first byte, where it is not that of single-object encoding


class Frame(NamedTuple):
    """Which schema a payload was written with, and where its Avro bytes begin."""

    ref: WriterRef
    start: int


def header_of(fingerprint: bytes) -> bytes:
    """The ten bytes in front of every payload written with that schema in single-object encoding."""
    return _MARKER + fingerprint


def registry_prefix(schema_id: int) -> bytes:
    """The five bytes in front of every payload written with that schema of a registry."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def frame_of(data: bytes, schema_id: bytes = b"") -> Frame:
    """Read the frame; `schema_id` is the value of the header `__value_schema_id`.

    Raises `PayloadError` with a hint at what the bytes look like.
    """
    if schema_id:
        return Frame(_in_header(schema_id), 0)
    if data.startswith(_MARKER):
        return Frame(WriterRef("fingerprint", read_fingerprint(data)), HEADER_SIZE)
    size = FRAME_SIZES.get(data[:1])
    if size is None:
        raise PayloadError(f"not Avro single-object encoding (C3 01 ...): {_looks_like(data)}")
    if len(data) < size:
        raise PayloadError(f"the payload ends inside its registry prefix, after {len(data)} bytes")
    return Frame(_of_registry(data[:size]), size)


def read_fingerprint(data: bytes) -> bytes:
    """The fingerprint in single-object encoding. Raises `PayloadError`."""
    if not data.startswith(_MARKER):
        raise PayloadError(f"not Avro single-object encoding (C3 01 ...): {_looks_like(data)}")
    if len(data) < HEADER_SIZE:
        raise PayloadError(f"the payload ends inside its schema fingerprint, after {len(data)} bytes")
    return data[2:HEADER_SIZE]


def _in_header(schema_id: bytes) -> WriterRef:
    if len(schema_id) != FRAME_SIZES.get(schema_id[:1]):
        raise PayloadError(
            f"header __value_schema_id has {len(schema_id)} bytes that start with {schema_id[:4].hex()}; "
            "allowed: 00 and an id of 4 bytes, or 01 and a GUID of 16"
        )
    return _of_registry(schema_id)


def _of_registry(prefix: bytes) -> WriterRef:
    return WriterRef("id" if prefix[0] == 0 else "guid", prefix[1:])


def _looks_like(data: bytes) -> str:
    if not data:
        return "the payload is empty"
    if data.startswith(b"Obj\x01"):
        return "it looks like an Avro container file; send each job as a record of its own"
    if data[:1] in (b"{", b"["):
        return "it looks like JSON; publish with this library or `pipeline publish`"
    return f"{len(data)} bytes of something else"
