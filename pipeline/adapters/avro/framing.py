"""Avro single-object encoding: `C3 01`, the writer schema's CRC-64-AVRO little endian, then the Avro bytes.

Bare Avro is never accepted: it can start with any byte, so it could not be told from the other forms.
"""

from __future__ import annotations

from pipeline.errors import PayloadError

__all__ = ["HEADER_SIZE", "header_of", "read_fingerprint"]

HEADER_SIZE = 10
_MARKER = b"\xc3\x01"


def header_of(fingerprint: bytes) -> bytes:
    """The ten bytes in front of every payload written with that schema."""
    return _MARKER + fingerprint


def read_fingerprint(data: bytes) -> bytes:
    """The writer schema's fingerprint. Raises `PayloadError` with a hint at what the bytes look like."""
    if not data.startswith(_MARKER):
        raise PayloadError(f"not Avro single-object encoding (C3 01 ...): {_looks_like(data)}")
    if len(data) < HEADER_SIZE:
        raise PayloadError(f"the payload ends inside its schema fingerprint, after {len(data)} bytes")
    return data[2:HEADER_SIZE]


def _looks_like(data: bytes) -> str:
    if not data:
        return "the payload is empty"
    if data.startswith(b"Obj\x01"):
        return "it looks like an Avro container file; send each job as a record of its own"
    if data[:1] in (b"{", b"["):
        return "it looks like JSON; publish with this library or `pipeline publish`"
    if data[0] == 0 and len(data) >= 5:
        number = int.from_bytes(data[1:5], "big")
        return f"it looks like a Confluent schema registry prefix (schema id {number}); no registry is configured"
    if data[0] == 1 and len(data) >= 17:
        return "it looks like a schema registry prefix with a GUID; no registry is configured"
    return f"{len(data)} bytes of something else"
