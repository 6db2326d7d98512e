"""Whose dead letter a record is, and what its headers tell of the error: ours, Spring Kafka's or Kafka Connect's.

Spring writes numbers as big-endian integers of 4 or 8 bytes, Connect as text. Whatever the headers hold, reading never
raises: what cannot be read is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from pipeline.core import headers as h
from pipeline.core.headers import HeaderList
from pipeline.core.job import EPOCH_LIMIT, Source

__all__ = ["Dialect", "Trouble", "dialect_of", "error_prefixes", "origin_of", "trouble_of"]

Headers = Mapping[str, bytes | None]


class Dialect(StrEnum):
    """Who wrote a letter."""

    PIPELINE = "pipeline"
    SPRING = "spring"
    CONNECT = "connect"


class Trouble(NamedTuple):
    """An error on the way to the DLQ: what was raised, and the record that was being worked on.

    Numbers that the letter does not tell are -1, times 0, texts empty.
    """

    error_class: str
    message: str
    stack: str
    topic: str
    partition: int
    offset: int
    timestamp: float
    group: str
    at: float


# Spring's dead-letter recoverer adds `kafka_dlt-`, its retry topics `kafka_`; the parts behind are the same.
_SPRING = ("kafka_dlt-", "kafka_")
_CONNECT = "__connect.errors."
_DROPPED: Mapping[Dialect, tuple[str, ...]] = {
    Dialect.PIPELINE: (h.FIRST, h.LAST),
    Dialect.SPRING: (
        "kafka_dlt-",
        "kafka_original-",
        "kafka_exception-",
        "kafka_key-exception-",
        "retry_topic-",
        "springDeserializerException",
    ),
    Dialect.CONNECT: (_CONNECT,),
}


def dialect_of(headers: Headers) -> Dialect:
    """Ours unless the headers are another's: a record that tells nothing was sent to our topic by hand."""
    if h.REASON in headers:
        return Dialect.PIPELINE
    if f"{_CONNECT}topic" in headers:
        return Dialect.CONNECT
    if any(f"{prefix}original-topic" in headers for prefix in _SPRING):
        return Dialect.SPRING
    return Dialect.PIPELINE


def error_prefixes(dialect: Dialect) -> tuple[str, ...]:
    """How the headers begin that tell of errors: they are dropped when a letter is replayed."""
    return _DROPPED[dialect]


def trouble_of(headers: Headers, dialect: Dialect, *, first: bool = False) -> Trouble:
    """The last error, or the first one; the other dialects tell of one only."""
    if dialect is Dialect.SPRING:
        return _of_spring(headers)
    if dialect is Dialect.CONNECT:
        return _of_connect(headers)
    return _of_ours(headers, h.FIRST if first else h.LAST)


def origin_of(headers: HeaderList, dialect: Dialect) -> Source:
    """The record that a letter of another's stands for; its topic is empty for a letter of ours.

    Spring may add its headers again at each hop: the first ones tell of the topic where it began.
    """
    if dialect is Dialect.PIPELINE:
        return Source("", -1, -1)
    begun: dict[str, bytes | None] = {}
    for name, value in headers:
        begun.setdefault(name, value)
    told = trouble_of(begun, dialect)
    return Source(told.topic, told.partition, told.offset)


def _of_ours(headers: Headers, prefix: str) -> Trouble:
    return Trouble(
        error_class=_text(headers, f"{prefix}error-class"),
        message=_text(headers, f"{prefix}error-message"),
        stack=_text(headers, f"{prefix}error-stack"),
        topic=_text(headers, f"{prefix}topic"),
        partition=_digits(headers, f"{prefix}partition"),
        offset=_digits(headers, f"{prefix}offset"),
        timestamp=_time(headers, f"{prefix}timestamp"),
        group=_text(headers, f"{prefix}group"),
        at=_time(headers, f"{prefix}at"),
    )


def _of_spring(headers: Headers) -> Trouble:
    def name(part: str) -> str:
        return next((prefix + part for prefix in _SPRING if prefix + part in headers), part)

    of_key = name("exception-fqcn") not in headers and name("key-exception-fqcn") in headers
    kind = "key-exception" if of_key else "exception"
    # Spring wraps what a listener raised: the cause says more than "a listener failed".
    cause = _text(headers, name("exception-cause-fqcn"))
    millis = _binary(headers, name("original-timestamp"))
    return Trouble(
        error_class=cause or _text(headers, name(f"{kind}-fqcn")),
        message=_text(headers, name(f"{kind}-message")),
        stack=_text(headers, name(f"{kind}-stacktrace")),
        topic=_text(headers, name("original-topic")),
        partition=_binary(headers, name("original-partition")),
        offset=_binary(headers, name("original-offset")),
        timestamp=millis / 1000 if 0 < millis <= EPOCH_LIMIT * 1000 else 0.0,
        group=_text(headers, name("original-consumer-group")),
        at=0.0,
    )


def _of_connect(headers: Headers) -> Trouble:
    return Trouble(
        error_class=_text(headers, f"{_CONNECT}exception.class.name"),
        message=_text(headers, f"{_CONNECT}exception.message"),
        stack=_text(headers, f"{_CONNECT}exception.stacktrace"),
        topic=_text(headers, f"{_CONNECT}topic"),
        partition=_digits(headers, f"{_CONNECT}partition"),
        offset=_digits(headers, f"{_CONNECT}offset"),
        timestamp=0.0,
        group=_text(headers, f"{_CONNECT}connector.name"),
        at=0.0,
    )


def _text(headers: Headers, name: str) -> str:
    return (headers.get(name) or b"").decode("utf-8", "backslashreplace")


def _digits(headers: Headers, name: str) -> int:
    raw = headers.get(name) or b""
    return int(raw) if raw.isdigit() and len(raw) <= 18 else -1


def _binary(headers: Headers, name: str) -> int:
    raw = headers.get(name) or b""
    return max(int.from_bytes(raw, "big", signed=True), -1) if len(raw) in (4, 8) else -1


def _time(headers: Headers, name: str) -> float:
    try:
        value = float(headers.get(name) or b"0")
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= EPOCH_LIMIT else 0.0  # NaN is neither
