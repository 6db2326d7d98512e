"""Dead letters as Spring Kafka and Kafka Connect write them."""

from __future__ import annotations

from pipeline.core.headers import HeaderList
from pipeline.core.job import Record
from tests.unit.letter_examples import DLQ, NOW

__all__ = ["connect_headers", "foreign_record", "spring_headers"]


def spring_headers(
    *, topic: str = "orders", partition: int = 3, offset: int = 2**33, prefix: str = "kafka_dlt-"
) -> HeaderList:
    """What the dead-letter recoverer adds: text, and big-endian integers of 4 and 8 bytes."""
    return [
        (f"{prefix}exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
        (f"{prefix}exception-cause-fqcn", b"com.example.shop.OutOfStock"),
        (f"{prefix}exception-message", b"Listener failed; no widget left"),
        (f"{prefix}exception-stacktrace", b"com.example.shop.OutOfStock: no widget left\n\tat Shop.sell\n"),
        (f"{prefix}original-topic", topic.encode()),
        (f"{prefix}original-partition", partition.to_bytes(4, "big")),
        (f"{prefix}original-offset", offset.to_bytes(8, "big")),
        (f"{prefix}original-timestamp", int((NOW - 60) * 1000).to_bytes(8, "big")),
        (f"{prefix}original-timestamp-type", b"CreateTime"),
        (f"{prefix}original-consumer-group", b"shop"),
    ]


def connect_headers(*, topic: str = "orders", partition: int = 3, offset: int = 17) -> HeaderList:
    """What a sink connector's error reporter adds: all of it text."""
    told = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "connector.name": "orders-to-warehouse",
        "task.id": "0",
        "stage": "VALUE_CONVERTER",
        "class.name": "org.apache.kafka.connect.json.JsonConverter",
        "exception.class.name": "org.apache.kafka.connect.errors.DataException",
        "exception.message": "Converting byte[] to Kafka Connect data failed",
        "exception.stacktrace": "org.apache.kafka.connect.errors.DataException\n\tat Json\n",
    }
    return [(f"__connect.errors.{name}", value.encode()) for name, value in told.items()]


def foreign_record(
    headers: HeaderList, *, partition: int = 0, offset: int = 0, key: bytes | None = b"order-7"
) -> Record:
    """A letter of another's in the DLQ topic of the default queue, with a header of its own."""
    own: HeaderList = [("tenant-of-theirs", b"acme")]
    return Record(DLQ, partition, offset, key, b'{"widget": 7}', [*own, *headers], NOW)
