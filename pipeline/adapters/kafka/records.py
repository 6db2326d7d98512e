"""Messages of librdkafka -> `Record`."""

from __future__ import annotations

from typing import cast

from confluent_kafka import Message

from pipeline.core.job import Record

__all__ = ["UNREADABLE_HEADERS", "to_record"]

# What a record has instead of its headers when one of their names is no UTF-8, which Kafka's format asks for.
UNREADABLE_HEADERS = "pipeline-unreadable-headers"


def to_record(message: Message) -> Record:
    """Bytes untouched. A record without a timestamp gets 0."""
    _, millis = message.timestamp()
    try:
        headers = message.headers()
    except SystemError:
        # The client builds a broken list then, whose names must not be touched: the process would crash. A record
        # without its headers is no job, and goes to the dead letters with its key and value.
        headers = [(UNREADABLE_HEADERS, b"")]
    return Record(
        message.topic() or "",
        cast("int", message.partition()),
        cast("int", message.offset()),
        message.key(),
        message.value(),
        cast("list[tuple[str, bytes | None]]", headers) if headers else [],
        millis / 1000 if millis > 0 else 0.0,
    )
