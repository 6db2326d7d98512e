"""What Kafka's errors mean here: which of our errors each becomes, and where client logs go."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError, KafkaException

from pipeline.errors import BrokerUnavailable, PayloadTooLarge, PipelineError, PublishFailed, PublishUnknown

__all__ = ["TOO_LARGE", "delivery_error", "describe", "log_client_error", "logger", "unavailable"]

logger = logging.getLogger("pipeline.kafka")

# A batch is refused as a whole for one record in it.
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})

# The broker refused the record, or it never left this process: it is certainly not in the log. Everything else,
# a time-out above all, may have been written: librdkafka does not tell the two apart in Python.
_NOT_WRITTEN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own codes are spelt so
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._PURGE_QUEUE,  # noqa: SLF001
        KafkaError._QUEUE_FULL,  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


def describe(error: KafkaError | KafkaException) -> str:
    """Kafka's name for an error and its text."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    return f"{inner.name()} ({inner.str()})"


def delivery_error(error: KafkaError, topic: str) -> PipelineError:
    """The error of one write. A `PublishUnknown` where the record may be in the log."""
    code = error.code()
    if code in TOO_LARGE:
        return PayloadTooLarge(f"topic {topic} refuses the record as too large: {describe(error)}")
    if code in _NO_TOPIC:
        return PublishFailed(f"topic {topic} does not exist: `pipeline topics apply` creates it")
    if code in _NOT_WRITTEN:
        return PublishFailed(f"topic {topic} did not take the record: {describe(error)}")
    return PublishUnknown(f"whether topic {topic} took the record is unknown: {describe(error)}")


def unavailable(bootstrap: str, timeout: float, error: KafkaError | KafkaException) -> BrokerUnavailable:
    """A plain sentence for a cluster that does not answer."""
    return BrokerUnavailable(f"no answer from Kafka at {bootstrap} within {timeout:g} s: {describe(error)}")


def log_client_error(error: KafkaError) -> None:
    """Connection troubles: the client goes on by itself, and says so."""
    logger.warning("Kafka client: %s", describe(error), extra={"action": "kafka_error"})
