"""Messages of librdkafka -> `Record`."""

from __future__ import annotations

from typing import cast

from confluent_kafka import Message

from pipeline.core.job import Record

__all__ = ["to_record"]


def to_record(message: Message) -> Record:
    """Bytes untouched. A record without a timestamp gets 0."""
    _, millis = message.timestamp()
    headers = message.headers()
    return Record(
        message.topic() or "",
        cast("int", message.partition()),
        cast("int", message.offset()),
        message.key(),
        message.value(),
        cast("list[tuple[str, bytes | None]]", headers) if headers else [],
        millis / 1000 if millis > 0 else 0.0,
    )
