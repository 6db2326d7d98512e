"""What a worker and its children say to each other: one byte for the kind, then JSON, then the payload as it is.

Nothing is pickled: a payload travels as the bytes that were fetched, an outcome as plain data.

    worker -> child   HELLO (once), then JOB or LEASE (the worker's lease is lost, or there again)
    child  -> worker  READY or BROKEN (once), then for each job STARTED, perhaps COMMITTED, and ENDED or EXHAUSTED
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple, get_args

from pipeline.core.job import Job, Source
from pipeline.core.outcome import Failure, Outcome

__all__ = ["JobOrder", "Kind", "pack", "pack_job", "pack_outcome", "unpack", "unpack_job", "unpack_outcome"]


class Kind(bytes, Enum):
    HELLO = b"H"
    JOB = b"J"
    LEASE = b"L"
    READY = b"R"
    BROKEN = b"B"
    STARTED = b"S"
    COMMITTED = b"C"
    ENDED = b"E"
    EXHAUSTED = b"X"  # the handler ran into the memory limit of its process


class JobOrder(NamedTuple):
    """A job to run. `now` is the store's time at the monotonic time `at`, which all processes of a machine share."""

    job: Job
    source: Source
    token: int
    now: float
    at: float
    value: bytes


_OUTCOMES: dict[str, Any] = {kind.__name__: kind for kind in get_args(Outcome)}


def pack(kind: Kind, data: object = None) -> bytes:
    return kind.value + json.dumps(data).encode()


def unpack(message: bytes) -> tuple[Kind, Any]:
    """The kind and its data; of a JOB the bytes, for `unpack_job`. Raises `ValueError`."""
    kind = Kind(message[:1])
    return kind, message[1:] if kind is Kind.JOB else json.loads(message[1:])


def pack_job(order: JobOrder) -> bytes:
    head = json.dumps(order[:-1], default=_mark_bytes).encode()
    return b"".join((Kind.JOB.value, len(head).to_bytes(4, "big"), head, order.value))


def unpack_job(body: bytes) -> JobOrder:
    end = 4 + int.from_bytes(body[:4], "big")
    job, source, token, now, at = json.loads(body[4:end], object_hook=_read_bytes)
    return JobOrder(Job(*job), Source(*source), token, now, at, body[end:])


def _mark_bytes(value: bytes) -> dict[str, str]:
    return {"hex": value.hex()}


def _read_bytes(marked: dict[str, str]) -> bytes:
    return bytes.fromhex(marked["hex"])


def pack_outcome(outcome: Outcome) -> bytes:
    return pack(Kind.ENDED, [type(outcome).__name__, *outcome])


def unpack_outcome(data: list[Any]) -> Outcome:
    name, *values = data
    # A failure is the only value that is no plain one.
    plain = [Failure(*value) if isinstance(value, list) else value for value in values]
    outcome: Outcome = _OUTCOMES[name](*plain)
    return outcome
