"""Settings for librdkafka, built from plain values.

What the promises of this package rest on is fixed here and cannot be overridden; every other librdkafka key passes
through. One mapping of extra keys serves all clients: each takes the keys that concern it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException, libversion

from pipeline.adapters.kafka.failures import ClientLog, noting_refusals
from pipeline.errors import ConfigError

__all__ = [
    "Conf",
    "admin_config",
    "construct",
    "consumer_config",
    "delivery_timeout",
    "is_cooperative",
    "producer_config",
]

Conf = dict[str, Any]
T = TypeVar("T")

# Shared by all clients. librdkafka waits up to 10 s between attempts to reconnect, which is far longer than a broker
# needs to restart, and up to 5 minutes before it looks for new partitions.
_COMMON: Mapping[str, str] = {
    "client.id": "pipeline",
    "socket.nagle.disable": "true",
    "reconnect.backoff.max.ms": "2000",
    "topic.metadata.refresh.interval.ms": "30000",
}
_PRODUCER: Mapping[str, str] = {
    "enable.idempotence": "true",
    "acks": "all",
    "partitioner": "murmur2_random",
}
_CONSUMER: Mapping[str, str] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # A partition that is resumed waits for the fetch under way to return: half a second by default.
    "fetch.wait.max.ms": "100",
    # Local queue: 32 MB, and no second of idling each time that it was full.
    "queued.max.messages.kbytes": "32768",
    "fetch.queue.backoff.ms": "50",
}
# Only what moves is taken away at a rebalance; see split.py for what it takes to share topics evenly then.
_COOPERATIVE = "cooperative-sticky"
_CLASSIC_ONLY: Mapping[str, str] = {
    "heartbeat.interval.ms": "1000",  # a member learns of a rebalance by a heartbeat
}

# key -> (values that change nothing, why there is no other)
_FIXED: Mapping[str, tuple[frozenset[str], str]] = {
    "acks": (frozenset({"all", "-1"}), "all, or an accepted job could be lost"),
    "enable.idempotence": (frozenset({"true"}), "true, or a job could be written twice"),
    "partitioner": (
        frozenset({"murmur2_random"}),
        "murmur2_random, so that a key has one partition everywhere",
    ),
    "delivery.report.only.error": (frozenset({"false"}), "false, or no publish would ever end"),
    "queuing.strategy": (frozenset({"fifo"}), "fifo, or the order of jobs would be lost"),
    "transactional.id": (frozenset(), "no value: the producer is idempotent, not transactional"),
    "enable.auto.commit": (frozenset({"false"}), "false: an offset is committed after its job has ended"),
    "enable.auto.offset.store": (
        frozenset({"false"}),
        "false: an offset is committed after its job has ended",
    ),
    "isolation.level": (frozenset({"read_committed"}), "read_committed, or aborted records would run"),
    "auto.offset.reset": (
        frozenset({"earliest", "smallest", "beginning"}),
        "earliest, or jobs would be skipped",
    ),
    "group.id": (frozenset(), "no value: the group is named by the setting of the worker"),
    "bootstrap.servers": (frozenset(), "no value here: the brokers are named by a setting of their own"),
}
_ALIASES: Mapping[str, str] = {
    "request.required.acks": "acks",
    "auto.commit.enable": "enable.auto.commit",
    "metadata.broker.list": "bootstrap.servers",
    "linger.ms": "queue.buffering.max.ms",
    "compression.type": "compression.codec",
    "delivery.timeout.ms": "message.timeout.ms",
    "sasl.mechanism": "sasl.mechanisms",
    "retries": "message.send.max.retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
_SECRETS = ("password", "secret", "key.pem", "oauthbearer.config", "jaas", "token")
_PRODUCER_ONLY = (
    "queue.buffering.",
    "linger.ms",
    "batch.",
    "compression.",
    "sticky.partitioning.",
    "message.send.",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "retries",
    "retry.backoff.",
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "partitioner",
    "transaction",
    "queuing.strategy",
    "delivery.report.",
)
_CONSUMER_ONLY = (
    "group.",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "coordinator.query.interval.ms",
    "enable.auto.",
    "auto.",
    "queued.",
    "fetch.",
    "max.partition.fetch.bytes",
    "isolation.level",
    "check.crcs",
    "enable.partition.eof",
    "offset.",
    "consume.",
)


def producer_config(
    bootstrap: str,
    *,
    linger_ms: float = 0,
    compression: str = "lz4",
    delivery_timeout: float = 30.0,
    extra: Mapping[str, str] | None = None,
) -> Conf:
    """An idempotent producer, acknowledged by all in-sync replicas. `delivery_timeout` is in seconds.

    Raises `ConfigError` for an extra key that would break a promise.
    """
    ours = {
        **_PRODUCER,
        "linger.ms": f"{linger_ms:g}",
        "compression.type": compression,
        "delivery.timeout.ms": str(round(delivery_timeout * 1000)),
        # How long a missing topic may yet appear: not until the time-out, which would not say what is wrong.
        "topic.metadata.propagation.max.ms": str(min(5000, round(delivery_timeout * 500))),
    }
    return _merge(bootstrap, ours, extra, skip=_CONSUMER_ONLY)


def consumer_config(
    bootstrap: str,
    *,
    group: str,
    protocol: str = _COOPERATIVE,
    static_member_id: str = "",
    session_timeout: float | None = None,
    max_poll_interval: float | None = None,
    extra: Mapping[str, str] | None = None,
) -> Conf:
    """A member of `group` that commits by hand. Timeouts are in seconds; None leaves librdkafka's own.

    `protocol` is `consumer` (KIP-848), or an assignment strategy of the classic group protocol. With `consumer` the session
    timeout is the broker's to choose, and `session_timeout` is not used. Raises `ConfigError` for an extra key that would
    break a promise.
    """
    ours = {**_CONSUMER, "group.id": group}
    if max_poll_interval is not None:
        ours["max.poll.interval.ms"] = str(round(max_poll_interval * 1000))
    if static_member_id:
        ours["group.instance.id"] = static_member_id
    if protocol == "consumer":
        ours["group.protocol"] = "consumer"
    if (extra or {}).get("group.protocol", ours.get("group.protocol", "classic")).lower() == "classic":
        ours.update(_CLASSIC_ONLY)
        ours["partition.assignment.strategy"] = _COOPERATIVE if protocol == "consumer" else protocol
        if session_timeout is not None:
            ours["session.timeout.ms"] = str(round(session_timeout * 1000))
    return _merge(bootstrap, ours, extra, skip=_PRODUCER_ONLY)


def admin_config(bootstrap: str, *, extra: Mapping[str, str] | None = None) -> Conf:
    """A client for requests about topics and groups."""
    return _merge(bootstrap, {}, extra, skip=(*_PRODUCER_ONLY, *_CONSUMER_ONLY))


def is_cooperative(conf: Conf) -> bool:
    """Whether partitions are given and taken one by one, rather than all at each rebalance."""
    if conf.get("group.protocol", "classic").lower() == "consumer":
        return True
    return "cooperative" in conf.get("partition.assignment.strategy", "")


def delivery_timeout(conf: Conf) -> float:
    """After how many seconds a write of this producer has ended, whatever happens."""
    return next(int(conf[key]) for key in conf if _canonical(key) == "message.timeout.ms") / 1000


def construct(client: Callable[..., T], conf: Conf, log: ClientLog | None = None) -> T:
    """Make a client of confluent_kafka; what librdkafka refuses becomes a `ConfigError` that names key and value.

    Its log lines go to `log`, and its errors too unless `conf` has a callback for them.
    """
    on_error = conf.get("error_cb", log.error if log else lambda _: None)
    given = {**conf, "error_cb": noting_refusals(conf["bootstrap.servers"], on_error)}
    try:
        return client(given, logger=log) if log else client(given)
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigError(_refusal(conf, error)) from None


def _merge(
    bootstrap: str, ours: Mapping[str, str], extra: Mapping[str, str] | None, *, skip: tuple[str, ...]
) -> Conf:
    if not bootstrap.strip():
        raise ConfigError("the list of Kafka brokers is ''; allowed: host:port, several with commas between")
    conf: Conf = {"bootstrap.servers": bootstrap, **_COMMON, **ours}
    for key, value in (extra or {}).items():
        _check(key, value)
        if _canonical(key) in _FIXED or key.startswith(skip):
            continue
        for other in [known for known in conf if _canonical(known) == _canonical(key)]:
            del conf[other]
        conf[key] = value
    return conf


def _canonical(key: str) -> str:
    return _ALIASES.get(key, key)


def _check(key: str, value: str) -> None:
    name = _canonical(key)
    allowed, reason = _FIXED.get(name, (None, ""))
    if allowed is not None and value.strip().lower() not in allowed:
        raise ConfigError(f"Kafka option {key} is {_shown(key, value)}; allowed: {reason}")
    if key.endswith("_cb") or key in ("default.topic.config", "opaque"):
        raise ConfigError(
            f"Kafka option {key} is {_shown(key, value)}; allowed: options that take plain values"
        )
    if name == "message.timeout.ms" and not (value.strip().isdecimal() and int(value) > 0):
        raise ConfigError(
            f"Kafka option {key} is {value!r}; allowed: milliseconds, 1 or more: a publish must end"
        )


def _is_secret(key: str) -> bool:
    return any(part in key for part in _SECRETS)


def _shown(key: str, value: object) -> str:
    return "***" if _is_secret(key) else repr(value)


def _refusal(conf: Conf, error: Exception) -> str:
    """Name the key that librdkafka complains of, as the user wrote it, and never a secret."""
    detail = error.args[0] if error.args else error
    text = (detail.str() if hasattr(detail, "str") else str(detail)).strip()
    for key, value in conf.items():
        if _is_secret(key) and value:
            text = text.replace(str(value), "***")
    named = [key for key in conf if _mentions(text, key) or _mentions(text, _canonical(key))]
    if not named:
        return f"librdkafka {libversion()[0]} refuses the Kafka options: {text}"
    given = ", ".join(f"{key} is {_shown(key, conf[key])}" for key in named)
    return f"Kafka option {given}; librdkafka {libversion()[0]} says: {text}"


def _mentions(text: str, key: str) -> bool:
    return any(f"{quote}{key}{quote}" in text for quote in ('"', "`")) or f" {key} " in f" {text} "
