"""Messages of librdkafka -> `Record`."""

from __future__ import annotations

from operator import methodcaller

from confluent_kafka import Message

from pipeline.core.job import Record
from pipeline.core.quick import new_tuple

__all__ = ["UNREADABLE_HEADERS", "to_record"]

# What a record has instead of its headers when one of their names is no UTF-8, which Kafka's format asks for.
UNREADABLE_HEADERS = "pipeline-unreadable-headers"

# For a name that is no UTF-8 the client sets an error and returns a broken list all the same, whose names must not be
# touched: the process would crash. A call from C notices, a plain `message.headers()` does not once the interpreter has
# specialised it, after some calls.
_read_headers = methodcaller("headers")


def to_record(message: Message) -> Record:
    """Bytes untouched. A record without a timestamp gets 0."""
    _, millis = message.timestamp()
    try:
        headers = _read_headers(message)
    except SystemError:
        # A record without its headers is no job, and goes to the dead letters with its key and value.
        headers = [(UNREADABLE_HEADERS, b"")]
    return new_tuple(
        Record,
        (
            message.topic() or "",
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            headers or [],
            millis / 1000 if millis > 0 else 0.0,
        ),
    )
