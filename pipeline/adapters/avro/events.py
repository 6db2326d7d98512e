"""Lifecycle events as Avro, in single-object encoding; the schemas are `event.avsc` and `breaker_event.avsc` beside this file.

An event of a job is written for every job, so its few kinds of values are put together by hand here: about a quarter of the time
of a general encoder. A test decodes what comes out with a general decoder and the schema.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from pipeline.adapters.avro.framing import HEADER_SIZE, header_of
from pipeline.core.events import BreakerChange, Trail
from pipeline.core.state import TRANSITIONS
from pipeline.errors import PayloadError

__all__ = ["decode_event", "encode_breaker_event", "encode_event"]


def _load(file: str) -> tuple[bytes, Any]:
    """A schema of this folder: the header of what is written with it, and the schema parsed."""
    schema: dict[str, Any] = json.loads(Path(__file__).with_name(file).read_text())
    print_ = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return header_of(bytes.fromhex(print_)), fastavro.parse_schema(schema)


_HEADER, _JOB = _load("event.avsc")
_BREAKER_HEADER, _BREAKER = _load("breaker_event.avsc")
_SCHEMAS = {_HEADER: _JOB, _BREAKER_HEADER: _BREAKER}
_pack_double: Final = struct.Struct("<d").pack


def encode_event(trail: Trail) -> bytes:
    """The record's value for moves of one job under one claim."""
    job, steps = trail.job, trail.steps
    parts = [
        _HEADER,
        _text(job.job_id),
        _identity(job.job_type, job.tenant, job.queue, trail.worker, job.attempt, job.hop, trail.token),
        _long(len(steps)),
    ]
    for previous, trigger, _, at, duration, reason, error_class in steps:
        parts.append(_STEPS[previous + trigger])
        parts.append(_micros(int(at * 1_000_000)))
        parts.append(b"\x00" if duration is None else b"\x02" + _pack_double(duration))
        parts.append(_text(reason) + _text(error_class) if reason or error_class else b"\x00\x00")
    parts.append(b"\x00")  # the end of the array
    return b"".join(parts)


def encode_breaker_event(change: BreakerChange) -> bytes:
    """The record's value for a change of a breaker."""
    buffer = BytesIO(_BREAKER_HEADER)
    buffer.seek(0, SEEK_END)
    values = {**change._asdict(), "at": int(change.at * 1_000_000)}
    fastavro.schemaless_writer(buffer, _BREAKER, values)
    return buffer.getvalue()


def decode_event(data: bytes) -> dict[str, Any]:
    """The event, of a job or of a breaker, as plain values. Raises `PayloadError`."""
    schema = _SCHEMAS.get(data[:HEADER_SIZE])
    if schema is None:
        raise PayloadError(f"not a lifecycle event: schema {data[2:HEADER_SIZE].hex()}")
    try:
        event = fastavro.schemaless_reader(BytesIO(data[HEADER_SIZE:]), schema, None)
    except Exception as error:
        raise PayloadError(f"not a lifecycle event: {type(error).__name__}") from error
    assert isinstance(event, dict)
    return event


def _text(value: str) -> bytes:
    raw = value.encode()
    return (_LAST[len(raw) << 1] if len(raw) < 0x40 else _long(len(raw))) + raw


# What comes again and again is put together once.
@lru_cache(maxsize=8192)
def _identity(
    job_type: str, tenant: str, queue: str, worker: str, attempt: int, hop: int, token: int
) -> bytes:
    texts = b"".join(map(_text, (job_type, tenant, queue, worker)))
    return texts + b"".join(map(_long, (attempt, hop, token)))


def _long(value: int) -> bytes:
    """Avro's zig-zag, variable-length form of an integer: seven bits a byte, the lowest first."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    if rest < 0x80:
        return _LAST[rest]
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _micros(value: int) -> bytes:
    """`_long` for a present-day time, by tables: fourteen bits at a time, and the rest is small."""
    rest = value << 1
    if not 1 << 49 <= rest < 1 << 54:  # from 1978 to 2255
        return _long(value)
    return (
        _PAIRS[rest & 0x3FFF] + _PAIRS[rest >> 14 & 0x3FFF] + _PAIRS[rest >> 28 & 0x3FFF] + _ENDS[rest >> 42]
    )


_LAST: Final = [bytes((value,)) for value in range(0x80)]
_PAIRS: Final = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(0x4000)]
_ENDS: Final = [bytes((value & 0x7F | 0x80, value >> 7)) for value in range(0x1000)]

# Looked up by two names joined: to hash an enum costs a call into Python.
_STEPS: Final = {
    before + trigger: b"".join(map(_text, (before, trigger, state)))
    for (before, trigger), state in TRANSITIONS.items()
}
