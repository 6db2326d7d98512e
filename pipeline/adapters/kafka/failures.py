"""What Kafka's errors mean here: which of our errors each becomes, and where client logs go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from pipeline.errors import BrokerUnavailable, PayloadTooLarge, PipelineError, PublishFailed, PublishUnknown

__all__ = [
    "TOO_LARGE",
    "ClientLog",
    "delivery_error",
    "describe",
    "logger",
    "noting_refusals",
    "unavailable",
]

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
_REFUSALS = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001
_FRESH_SECONDS = 30.0  # a client that is refused tries again every 2 s
_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


def describe(error: KafkaError | KafkaException) -> str:
    """Kafka's name for an error and its text."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    return f"{inner.name()} ({inner.str()})"


def delivery_error(error: KafkaError, topic: str, *, bootstrap: str) -> PipelineError:
    """The error of one write to Kafka at `bootstrap`. A `PublishUnknown` where the record may be in the log."""
    code = error.code()
    if code in TOO_LARGE:
        return PayloadTooLarge(f"topic {topic} refuses the record as too large: {describe(error)}")
    if code in _NO_TOPIC:
        return PublishFailed(f"topic {topic} does not exist: `pipeline topics apply` creates it")
    if code in _NOT_WRITTEN:
        return PublishFailed(f"topic {topic} did not take the record: {describe(error)}")
    if code == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 - librdkafka's own codes are spelt so
        return PublishUnknown(
            f"no answer from Kafka at {bootstrap} in time: whether topic {topic} took the record is unknown"
            f"{_because(bootstrap)}"
        )
    return PublishUnknown(f"whether topic {topic} took the record is unknown: {describe(error)}")


def unavailable(bootstrap: str, timeout: float, error: KafkaError | KafkaException) -> BrokerUnavailable:
    """A plain sentence for a cluster that does not answer."""
    why = _because(bootstrap) or f": {describe(error)}"
    return BrokerUnavailable(f"no answer from Kafka at {bootstrap} within {timeout:g} s{why}")


# Brokers -> when a client of this process was last refused by them, and why. A call that times out only says that no
# broker was there: that the password or the certificate is wrong is told to the client as a whole, apart from all calls.
_refused: dict[str, tuple[float, str]] = {}


def noting_refusals(bootstrap: str, on_error: Callable[[KafkaError], None]) -> Callable[[KafkaError], None]:
    """A callback for errors of a client: what says why it is not let in becomes part of the errors of its calls."""

    def note(error: KafkaError) -> None:
        if error.code() in _REFUSALS:
            _refused[bootstrap] = (time.monotonic(), error.str())
        on_error(error)

    return note


def _because(bootstrap: str) -> str:
    at, why = _refused.get(bootstrap, (0.0, ""))
    return f": {why}" if why and time.monotonic() - at < _FRESH_SECONDS else ""


class ClientLog:
    """Where a client's log lines and errors go: to our logger, but each kind only once in `interval` seconds.

    A client that is cut off tries twenty times a second to connect again, and tells of each attempt.
    """

    def __init__(self, interval: float = 30.0) -> None:
        self._interval = interval
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], float] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def log(self, level: int, message: str, facility: str, thread: str, text: str) -> None:
        """What confluent_kafka calls for each line that librdkafka logs."""
        del message, thread
        self._write(level, facility, text)

    def error(self, error: KafkaError) -> None:
        """An error that concerns no call: the client goes on by itself."""
        self._write(logging.WARNING, str(error.name()), str(error.str()))

    def _write(self, level: int, kind: str, text: str) -> None:
        client = text.partition(":")[0]  # a broker's address, where there is one
        repeated = self._repeated((kind, client))
        if repeated is not None:
            ending = f" ({repeated} more like it)" if repeated else ""
            logger.log(level, "Kafka client: %s: %s%s", kind, text, ending, extra={"action": "kafka_client"})

    def _repeated(self, key: tuple[str, str]) -> int | None:
        """How many were left out since the last time; None when this one is left out too."""
        now = time.monotonic()
        with self._lock:
            if now - self._last.get(key, -self._interval) < self._interval:
                self._left_out[key] = self._left_out.get(key, 0) + 1
                return None
            self._last[key] = now
            return self._left_out.pop(key, 0)
