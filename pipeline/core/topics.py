"""Names of topics, and what each must look like.

jobs.<queue>.<priority>        ready jobs: the main topics
jobs.<queue>.retry.<delay>     failed attempts, a topic per delay tier
jobs.<queue>.dlq               dead letters
jobs.events, jobs.schemas      lifecycle events, writer schemas
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.errors import ConfigError

__all__ = ["PRIORITIES", "TopicNames", "TopicSettings", "TopicSpec", "declare", "tier_name"]

PRIORITIES = ("critical", "high", "normal", "low")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_DAY_MS = 86_400_000


def check_name(key: str, value: str) -> str:
    """Give `value` back, or raise `ConfigError`: dots would make topic names ambiguous."""
    if not _NAME.fullmatch(value):
        raise ConfigError(
            f"{key} is {value!r}; allowed: a-z, 0-9, '_' and '-', at most 63, starting with a letter or digit"
        )
    return value


def tier_name(seconds: float) -> str:
    """Name a delay: 10 -> `10s`, 60 -> `1m`, 3600 -> `1h`, 0.5 -> `500ms`."""
    millis = round(seconds * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if millis % size == 0:
            return f"{millis // size}{unit}"
    return f"{millis}ms"


@dataclass(frozen=True)
class TopicNames:
    """The names under one namespace."""

    namespace: str = "jobs"

    def __post_init__(self) -> None:
        check_name("namespace", self.namespace)

    def main(self, queue: str, priority: str = "normal") -> str:
        return f"{self.namespace}.{queue}.{priority}"

    def retry(self, queue: str, delay: float) -> str:
        return f"{self.namespace}.{queue}.retry.{tier_name(delay)}"

    def dlq(self, queue: str) -> str:
        return f"{self.namespace}.{queue}.dlq"

    @property
    def events(self) -> str:
        return f"{self.namespace}.events"

    @property
    def schemas(self) -> str:
        return f"{self.namespace}.schemas"

    def queue_of(self, topic: str) -> str | None:
        """The queue that a main, retry or DLQ topic belongs to; None for any other topic."""
        parts = topic.removeprefix(f"{self.namespace}.").split(".")
        if not topic.startswith(f"{self.namespace}.") or len(parts) not in (2, 3):
            return None
        is_queue_topic = parts[1] in (*PRIORITIES, "dlq") if len(parts) == 2 else parts[1] == "retry"
        return parts[0] if is_queue_topic else None


@dataclass(frozen=True)
class TopicSpec:
    """A topic as declared: what `pipeline topics` compares with the cluster."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicSettings:
    """What the declaration of topics depends on. Retentions are in milliseconds, -1 is for ever."""

    partitions: int = 12
    events_partitions: int = 6
    replication: int = 1
    min_insync_replicas: int = 1
    max_message_bytes: int = 1_048_576
    main_retention_ms: int = 7 * _DAY_MS
    retry_retention_ms: int = 7 * _DAY_MS
    dlq_retention_ms: int = 30 * _DAY_MS
    events_retention_ms: int = 30 * _DAY_MS


# Headers grow by the first and last error on the way to the DLQ; its topics must take what the main topics took.
ERROR_HEADROOM_BYTES = 65_536


def declare(
    names: TopicNames, *, queues: Iterable[str], tiers: Sequence[float], settings: TopicSettings
) -> list[TopicSpec]:
    """Every topic that the given queues need, in a stable order."""
    specs: list[TopicSpec] = []
    for queue in queues:
        check_name("queue", queue)
        onward = {"max.message.bytes": str(settings.max_message_bytes + ERROR_HEADROOM_BYTES)}
        specs.append(
            _spec(names.main(queue), settings.partitions, settings.main_retention_ms, settings, onward)
        )
        specs.extend(
            _spec(
                names.retry(queue, tier), settings.partitions, settings.retry_retention_ms, settings, onward
            )
            for tier in tiers
        )
        specs.append(
            _spec(names.dlq(queue), settings.partitions, settings.dlq_retention_ms, settings, onward)
        )
    specs.append(_spec(names.events, settings.events_partitions, settings.events_retention_ms, settings, {}))
    # Only closed segments are compacted, and every process that publishes writes its schemas once more.
    compact = {"cleanup.policy": "compact", "segment.ms": "3600000"}
    specs.append(_spec(names.schemas, 1, -1, settings, compact))
    return specs


def _spec(
    name: str, partitions: int, retention_ms: int, settings: TopicSettings, extra: Mapping[str, str]
) -> TopicSpec:
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "min.insync.replicas": str(settings.min_insync_replicas),
        "max.message.bytes": str(settings.max_message_bytes),
        **extra,
    }
    return TopicSpec(name, partitions, settings.replication, config)
