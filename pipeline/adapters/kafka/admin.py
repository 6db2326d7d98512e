"""Questions about topics and groups, and changes to topics. Every call has a bounded wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not marked so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from pipeline.adapters.kafka.config import Conf, construct
from pipeline.adapters.kafka.failures import describe, unavailable
from pipeline.adapters.kafka.metadata import UNSETTLED, missing_topics, partition_counts
from pipeline.core.offsets import Partition
from pipeline.core.plan import TopicState
from pipeline.core.retention import Kept
from pipeline.core.topics import TopicSpec
from pipeline.errors import BrokerUnavailable, PipelineError, TopicsError, TopicsMissing

__all__ = ["GroupPosition", "KafkaAdmin"]

T = TypeVar("T")

_AWAY = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001 - librdkafka's own codes are spelt so
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
_COORDINATOR_MOVES = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
_STEP = 0.05
_START = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class GroupPosition(NamedTuple):
    """How far a group has come in a partition: its committed offset (None when it has none), and the end."""

    committed: int | None
    end: int


class KafkaAdmin:
    """`config` comes from `admin_config`; `timeout` bounds each call, in seconds.

    Every method raises `BrokerUnavailable` when Kafka does not answer in time, and `TopicsError` when it refuses.
    """

    def __init__(self, config: Conf, *, timeout: float = 10.0) -> None:
        self._bootstrap: str = config["bootstrap.servers"]
        self._timeout = timeout
        self._config = config
        self._group_clients: dict[str, Consumer] = {}
        self._pause = threading.Event()  # never set: waiting for it is a pause
        # Its log would go to standard error unformatted; what matters is in the errors that are raised.
        self._client = construct(AdminClient, {"log_level": "0", **config})

    def broker_count(self) -> int:
        """How many brokers are up."""
        return len(self._list_topics().brokers)

    def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """Those of the topics that exist."""
        found = self._list_topics().topics
        there = [topic for topic in topics if topic in found and found[topic].error is None]
        if not there:
            return {}
        configs = self._configs(there)
        empty = self._empty_topics(there)
        return {
            topic: TopicState(
                name=topic,
                partitions=len(found[topic].partitions),
                replication=max((len(part.replicas) for part in found[topic].partitions.values()), default=0),
                config=configs[topic],
                is_empty=topic in empty,
            )
            for topic in there
        }

    def create(self, specs: Iterable[TopicSpec]) -> None:
        """Create topics and wait until they can be used. One that exists already is left as it is."""
        wanted = [
            NewTopic(spec.name, spec.partitions, spec.replication, config=dict(spec.config)) for spec in specs
        ]
        if not wanted:
            return
        for name, future in self._client.create_topics(wanted, request_timeout=self._timeout).items():
            self._result(future, f"topic {name} cannot be created", {KafkaError.TOPIC_ALREADY_EXISTS})
        names = [topic.topic for topic in wanted]
        self._await(lambda: not self._missing(names), f"{names} created")
        self.end_offsets(names)  # answered when each partition has a leader

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have `total` partitions."""
        asked = self._client.create_partitions([NewPartitions(topic, total)], request_timeout=self._timeout)
        self._result(asked[topic], f"topic {topic} cannot have {total} partitions")
        self._await(lambda: len(self._partitions([topic])) >= total, f"topic {topic} with {total} partitions")

    def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Set these keys, and leave all others as they are."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        asked = self._client.incremental_alter_configs([resource], request_timeout=self._timeout)
        self._result(asked[resource], f"topic {topic} cannot be configured")
        self._await(
            lambda: config.items() <= self._configs([topic])[topic].items(),
            f"topic {topic} with {dict(config)}",
        )

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics with their records, and wait until they are gone. One that does not exist is left out."""
        if not topics:
            return
        for name, future in self._client.delete_topics(list(topics), request_timeout=self._timeout).items():
            self._result(future, f"topic {name} cannot be deleted", {KafkaError.UNKNOWN_TOPIC_OR_PART})
        self._await(lambda: self._missing(topics) == list(topics), f"{topics} deleted")

    def end_offsets(self, topics: Sequence[str]) -> dict[Partition, int]:
        """Where the next record of each partition will lie; open transactions and what follows them do not count.

        Raises `TopicsMissing`.
        """
        return self._offsets(self._partitions(topics), _END)

    def start_offsets(self, topics: Sequence[str]) -> dict[Partition, int]:
        """Where the first record of each partition lies that is still there. Raises `TopicsMissing`."""
        return self._offsets(self._partitions(topics), _START)

    def group_lag(self, group: str, topics: Sequence[str]) -> dict[Partition, GroupPosition]:
        """How far a group has come. A group that does not exist has committed nothing. Raises `TopicsMissing`."""
        ends = self.end_offsets(topics)
        committed = self._committed(group, list(ends))
        return {partition: GroupPosition(committed.get(partition), end) for partition, end in ends.items()}

    def kept(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, Kept]:
        """What these partitions hold, and what a group has committed in them."""
        starts, ends = self._offsets(partitions, _START), self._offsets(partitions, _END)
        committed = self._committed(group, partitions)
        return {p: Kept(starts[p], ends[p], committed.get(p)) for p in partitions}

    # --- requests

    def _list_topics(self) -> Any:
        try:
            return self._client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            self._client.poll(0)  # tells why, if it was refused
            raise unavailable(self._bootstrap, self._timeout, error) from None

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        configs: dict[str, dict[str, str]] = {}
        for resource, future in self._client.describe_configs(
            resources, request_timeout=self._timeout
        ).items():
            entries = self._result(future, f"the configuration of topic {resource.name} cannot be read") or {}
            configs[resource.name] = {entry.name: entry.value or "" for entry in entries.values()}
        return configs

    def _empty_topics(self, topics: Sequence[str]) -> set[str]:
        partitions = self._partitions(topics)
        starts = self._offsets(partitions, _START)
        ends = self._offsets(partitions, _END)
        filled = {partition.topic for partition in partitions if ends[partition] > starts[partition]}
        return set(topics) - filled

    def _partitions(self, topics: Sequence[str]) -> list[Partition]:
        counts = partition_counts(
            self._client, topics, bootstrap=self._bootstrap, timeout=self._timeout, idle=True
        )
        missing = [topic for topic in topics if topic not in counts]
        if missing:
            raise TopicsMissing(f"topics missing: {', '.join(missing)}; `pipeline topics apply` creates them")
        return [Partition(topic, number) for topic, count in counts.items() for number in range(count)]

    def _offsets(self, partitions: Sequence[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        deadline = time.monotonic() + self._timeout
        found: dict[Partition, int] = {}
        while len(found) < len(partitions):
            wanted = [partition for partition in partitions if partition not in found]
            for partition, future in self._list_offsets(wanted, spec).items():
                harmless = UNSETTLED if time.monotonic() < deadline else ()
                info = self._result(future, f"the offsets of {partition} cannot be read", harmless)
                if info is not None:
                    found[partition] = info.offset
            if len(found) < len(partitions):
                self._pause.wait(_STEP)
        return found

    def _list_offsets(
        self, partitions: Sequence[Partition], spec: OffsetSpec
    ) -> dict[Partition, Future[Any]]:
        asked = self._client.list_offsets(
            {TopicPartition(*partition): spec for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout,
        )
        return {Partition(each.topic, each.partition): future for each, future in asked.items()}

    def _committed(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Asked through a consumer that never joins the group.

        The admin client's own request for it ends the process with a segmentation fault when the coordinator of a group
        that is just being made answers that it is still loading (seen with librdkafka 2.16); a consumer waits for it.
        """
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                found = self._group_client(group).committed(wanted, timeout=self._timeout)
            except KafkaException as error:
                if error.args[0].code() not in _COORDINATOR_MOVES or time.monotonic() > deadline:
                    raise self._translated(error, f"the offsets of group {group} cannot be read") from None
                self._pause.wait(_STEP)
            else:
                return {
                    Partition(each.topic, each.partition): each.offset for each in found if each.offset >= 0
                }

    def _group_client(self, group: str) -> Consumer:
        client = self._group_clients.get(group)
        if client is None:
            conf = {"log_level": "0", **self._config, "group.id": group, "enable.auto.commit": "false"}
            client = self._group_clients[group] = construct(Consumer, conf)
        return client

    def _result(self, future: Future[T], what: str, harmless: Iterable[int] = ()) -> T | Any:
        try:
            return future.result(self._timeout + 1)  # the request has the same bound, and a better error
        except KafkaException as error:
            if error.args[0].code() in harmless:
                return None
            raise self._translated(error, what) from None
        except FutureTimeoutError:
            raise BrokerUnavailable(
                f"no answer from Kafka at {self._bootstrap} within {self._timeout:g} s"
            ) from None

    def _translated(self, error: KafkaException, what: str) -> PipelineError:
        self._client.poll(0)  # tells why, if it was refused
        if error.args[0].code() in _AWAY:
            return unavailable(self._bootstrap, self._timeout, error)
        return TopicsError(f"{what}: {describe(error)}")

    def _missing(self, topics: Sequence[str]) -> list[str]:
        return missing_topics(
            self._client, topics, bootstrap=self._bootstrap, timeout=self._timeout, idle=True
        )

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        """The controller has answered; the brokers follow a moment later."""
        deadline = time.monotonic() + self._timeout
        while not condition():
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"the brokers took longer than {self._timeout:g} s to follow: {what}")
            self._pause.wait(_STEP)
