"""The consumer: a member of the group that commits by hand, and only what it owns.

One thread owns it. Rebalances are served inside `poll` and `close`, and the listener is told there. Traps handled here:
- Kafka accepts commits for partitions that the member does not own: here they are refused before they are sent;
- librdkafka may serve a rebalance between the records of one batch: records of a partition that has gone are dropped,
  and come again to its next owner;
- `consume(n)` waits for n records until its timeout: only the first record is waited for;
- an exception raised in a rebalance callback must come out of `poll`, and not at the cost of fetched records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from mypy_extensions import mypyc_attr

from pipeline.adapters.kafka.commits import CommitsUnderWay
from pipeline.adapters.kafka.config import Conf, construct, is_cooperative
from pipeline.adapters.kafka.failures import ClientLog, describe, logger
from pipeline.adapters.kafka.forgotten import ForgottenCluster
from pipeline.adapters.kafka.metadata import missing_topics, require_topics
from pipeline.adapters.kafka.pauses import Pauses
from pipeline.adapters.kafka.records import to_record
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import RebalanceListener
from pipeline.errors import BrokerUnavailable, ConfigError, PipelineError, TopicsMissing

__all__ = ["KafkaJobConsumer"]

_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 - spelt so
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

# What Kafka answers to a commit that meets a change of the group. The partitions are the member's own all the same, and it is
# taken once the change is over.
_PASSING = frozenset(
    {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH}
)
_PASSING_STEP = 0.05  # seconds between two tries
_REST = 0.005  # seconds between looks whether partitions are to go on


@mypyc_attr(allow_interpreted_subclasses=True)
class KafkaJobConsumer:
    """`JobConsumer` on librdkafka. `config` comes from `consumer_config`; `timeout` bounds each question to the cluster."""

    def __init__(self, config: Conf, *, timeout: float = 10.0) -> None:
        self._config = config
        self._bootstrap: str = config["bootstrap.servers"]
        self._timeout = timeout
        self._cooperative = is_cooperative(config)
        self._listener: RebalanceListener | None = None
        self._topics: list[str] = []
        self._assigned: set[Partition] = set()
        self._moved = False  # partitions were taken away during the poll under way
        self._telling = False  # the listener is called from within a poll or close
        self._max_poll_interval = int(config.get("max.poll.interval.ms", "300000")) / 1000
        self._polled = time.monotonic()
        self._closed = False
        self._behind_from: dict[
            Partition, int
        ] = {}  # next offset to commit, as far as known: where lag counts from
        self._failed: list[Partition] = []
        self._under_way = CommitsUnderWay()
        self._error: BaseException | None = None  # raised by the listener or found in an event
        self._fetched: list[Message] = []
        self._pauses = Pauses()
        self._log = ClientLog()
        self._cluster = ForgottenCluster(config)
        self._consumer = self._client()

    def _client(self) -> Consumer:
        callbacks = {"on_commit": self._on_commit, "error_cb": self._on_error}
        return construct(Consumer, {**self._config, **callbacks}, self._log)

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """See `JobConsumer.subscribe`."""
        require_topics(self._consumer, topics, bootstrap=self._bootstrap, timeout=self._timeout)
        self._listener, self._topics = listener, list(topics)
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, max_records: int, timeout: float) -> list[Record]:
        """See `JobConsumer.poll`. Raises what the listener raised; `TopicsMissing` when a topic was deleted."""
        self._raise_kept()
        if self._pauses.resting(self._assigned, time.monotonic()):
            time.sleep(min(timeout, _REST))
            return []
        try:
            self._tell_pauses()
            self._fetch(max_records, timeout)
        except KafkaException as error:
            raise PipelineError(f"the consumer cannot go on: {describe(error)}") from error
        self._polled = time.monotonic()
        self._find_cluster()
        self._raise_kept()  # what was fetched stays for the next call: it would be skipped otherwise
        messages, self._fetched = self._fetched, []
        return self._records(messages)

    def _find_cluster(self) -> None:
        """Begin anew with another client, should this one have forgotten where its cluster is."""
        if self._assigned or self._listener is None:
            self._cluster.heard()
        elif self._cluster.is_certain(self._consumer, self._topics[0]):
            logger.error(
                "the consumer does not find Kafka, which answers others",
                extra={"action": "cluster_forgotten"},
            )
            self.rejoin([])

    def _fetch(self, max_records: int, timeout: float) -> None:
        self._moved = False
        if not self._fetched:
            first = self._consumer.poll(timeout)
            if first is not None:
                self._fetched.append(first)
        if self._fetched and self._error is None and len(self._fetched) < max_records:
            self._fetched += self._consumer.consume(max_records - len(self._fetched), 0)
        if self._moved:
            self._fetched = [message for message in self._fetched if self._is_ours(message)]

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> bool:
        """See `JobConsumer.commit`."""
        owned = {partition: offset for partition, offset in offsets.items() if partition in self._assigned}
        self._note_failed(offsets.keys() - owned.keys(), "this member does not own it")
        if not wait:
            self._commit_soon(owned)
            return True
        return self._commit_now(self._under_way.with_last(owned)) and len(owned) == len(offsets)

    def _commit_soon(self, offsets: dict[Partition, int]) -> None:
        now = time.monotonic()
        busy = self._under_way.busy(offsets, now)
        self._failed += busy  # the caller asks again
        free = {partition: offset for partition, offset in offsets.items() if partition not in busy}
        if not free:
            return
        try:
            self._consumer.commit(offsets=_asked(free), asynchronous=True)
        except KafkaException as error:
            self._note_failed(free, describe(error))
        else:
            self._under_way.sent(free, now)

    def _commit_now(self, offsets: dict[Partition, int]) -> bool:
        if not offsets:
            return True
        asked = _asked(offsets)
        try:
            # A commit that is waited for has no bound of its own, and is tried again inside until the broker is back:
            # whether the coordinator answers is found out first.
            self._consumer.committed(asked[:1], timeout=self._timeout)
            answered = self._commit_through_changes(asked)
        except KafkaException as error:
            self._note_failed(offsets, describe(error))
            return False
        return self._settle_commit(answered)

    def _commit_through_changes(self, asked: list[TopicPartition]) -> list[TopicPartition]:
        """Try again while the group changes, for as long as one question may take. There may be no later commit.

        That refuses all partitions of a commit, which the client raises; what is refused of some is in the answer.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._consumer.commit(offsets=asked, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() >= deadline:
                    raise
            time.sleep(_PASSING_STEP)

    def failed_commits(self) -> list[Partition]:
        """See `JobConsumer.failed_commits`."""
        failed, self._failed = self._failed, []
        return failed

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Fetch nothing from these partitions, and give nothing that was fetched. Those not assigned are left out."""
        self._pauses.pause(partition for partition in partitions if partition in self._assigned)
        if self._telling:  # the poll under way may bring records of them
            self._tell_pauses()

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Go on after the last record that was given."""
        self._consumer.resume(self._of_ours(self._pauses.resume(partitions)))

    def _tell_pauses(self) -> None:
        if untold := self._pauses.untold():
            self._consumer.pause(self._of_ours(untold))

    def lag(self) -> dict[str, int]:
        """See `JobConsumer.lag`. Counted from what is committed, or from the first record when nothing was yet."""
        lags: dict[str, int] = {}
        for partition in self._assigned:
            start = self._behind_from.get(partition)
            behind = 0
            if start is not None:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
                behind = max(0, end - start)
            lags[partition.topic] = lags.get(partition.topic, 0) + behind
        return lags

    def rejoin(self, partitions: Sequence[Partition]) -> None:
        """See `JobConsumer.rejoin`. All partitions of this member are given up, and what it had fetched is forgotten."""
        listener = self._listener
        if self._closed or listener is None:
            return
        logger.warning("joining the group anew for %s", partitions, extra={"action": "rejoining"})
        self.close()
        self._fetched.clear()
        self._consumer = self._client()
        self._closed = False
        self._polled = time.monotonic()
        self.subscribe(self._topics, listener)

    def close(self) -> None:
        """See `JobConsumer.close`. Bounded, also while Kafka is away. Raises what the listener raised, at the end."""
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._fetch(1, 0)  # serves a rebalance that waits; what it may fetch was never given
        self._revoke(sorted(self._assigned))
        self._listener = None  # told already
        # librdkafka would wait here until a commit under way is answered, however long Kafka is away.
        leaving = threading.Thread(target=self._leave, name="kafka-consumer-close", daemon=True)
        leaving.start()
        leaving.join(self._timeout)
        if leaving.is_alive():
            logger.warning("left the group without its knowing", extra={"action": "consumer_abandoned"})
        self._raise_kept()

    def _leave(self) -> None:
        try:
            self._consumer.close()
        except (KafkaException, RuntimeError) as error:
            logger.warning("leaving the group: %s", error, extra={"action": "consumer_abandoned"})

    # --- rebalances: called by librdkafka inside poll, consume and close

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        # Assigned before the listener is told, so that the listener can pause partitions. It would be done after this
        # callback otherwise, as for revoked and lost partitions.
        partitions = _partitions(given)
        if self._cooperative:
            consumer.incremental_assign(given)
        else:
            consumer.assign(given)
        consumer.resume(given)  # librdkafka keeps a pause from one assignment to the next
        self._assigned.update(partitions)
        if partitions:
            self._tell("on_assigned", partitions)

    def _on_revoke(self, _consumer: Consumer, taken: list[TopicPartition]) -> None:
        self._revoke(_partitions(taken))

    def _on_lost(self, _consumer: Consumer, taken: list[TopicPartition]) -> None:
        self._lose(_partitions(taken))

    def _revoke(self, partitions: list[Partition]) -> None:
        if time.monotonic() - self._polled > self._max_poll_interval:
            # Queued before the group gave this member up for not polling: it says revoked, but it is too late.
            self._lose(partitions)
            return
        self._moved = True
        if partitions:
            self._tell("on_revoked", partitions)
        self._forget(partitions)

    def _lose(self, partitions: list[Partition]) -> None:
        self._moved = True
        self._forget(partitions)
        if partitions:
            logger.warning("partitions lost: %s", partitions, extra={"action": "partitions_lost"})
            self._tell("on_lost", partitions)

    def _forget(self, partitions: list[Partition]) -> None:
        self._pauses.forget(partitions)
        for partition in partitions:
            self._assigned.discard(partition)
            self._behind_from.pop(partition, None)
        self._under_way.answered(partitions)

    def _tell(self, event: str, partitions: list[Partition]) -> None:
        if self._listener is None:
            return
        tell: Callable[[list[Partition]], None] = getattr(self._listener, event)
        self._telling = True
        try:
            tell(partitions)
        except BaseException as error:  # noqa: BLE001 - raised again by poll or close
            self._error = self._error or error
        finally:
            self._telling = False

    def _raise_kept(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- commits

    def _on_commit(self, error: KafkaError | None, answered: list[TopicPartition]) -> None:
        """The end of a commit that nobody waited for; called inside poll and consume."""
        self._under_way.answered(_partitions(answered))
        if error is not None and error.code() != KafkaError._NO_OFFSET:  # noqa: SLF001
            self._note_failed(_partitions(answered), describe(error))
        else:
            self._settle_commit(answered)

    def _settle_commit(self, answered: Iterable[TopicPartition]) -> bool:
        all_accepted = True
        for each in answered:
            partition = Partition(each.topic, each.partition)
            if each.error is not None:
                self._note_failed([partition], describe(each.error))
                all_accepted = False
            elif partition in self._assigned:
                self._behind_from[partition] = each.offset
        return all_accepted

    def _note_failed(self, partitions: Iterable[Partition], reason: str) -> None:
        """Never tried again here: after a rebalance Kafka would accept the old offset, and let the offset fall."""
        failed = list(partitions)
        if failed:
            self._failed += failed
            logger.warning("commit refused for %s: %s", failed, reason, extra={"action": "commit_refused"})

    # --- what was fetched

    def _records(self, messages: list[Message]) -> list[Record]:
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(to_record(message))
            else:
                self._on_event(message.topic(), error)
        if len(self._behind_from) < len(self._assigned):
            for record in records:
                self._behind_from.setdefault(Partition(record.topic, record.partition), record.offset)
        return records

    def _on_error(self, error: KafkaError) -> None:
        """An error that belongs to no record; called inside poll and consume."""
        self._on_event(None, error)

    def _on_event(self, topic: str | None, error: KafkaError) -> None:
        """Keep what must be raised for the next poll: the records beside it are given first."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return
        if code in _NO_TOPIC:
            self._on_topic_gone(topic, error)
        elif error.fatal() or code == KafkaError._FATAL:  # noqa: SLF001 - the latter does not say that it is fatal
            self._error = PipelineError(f"the consumer cannot go on: {describe(error)}")
        elif code in _REFUSED:
            self._error = ConfigError(f"Kafka refuses this consumer: {describe(error)}")
        else:
            self._log.error(error)

    def _on_topic_gone(self, topic: str | None, error: KafkaError) -> None:
        # A broker that has just started may not know a topic yet, so the cluster is asked before the worker is ended.
        logger.error("topic %s: %s", topic, describe(error), extra={"action": "topic_missing"})
        try:
            gone = missing_topics(
                self._consumer, [topic] if topic else [], bootstrap=self._bootstrap, timeout=self._timeout
            )
        except BrokerUnavailable as away:
            logger.warning("%s", away, extra={"action": "kafka_error"})
            return
        if gone:
            self._error = TopicsMissing(f"topic {topic} was deleted: `pipeline topics apply` creates it")

    def _is_ours(self, message: Message) -> bool:
        return message.error() is not None or (message.topic(), message.partition()) in self._assigned

    def _of_ours(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        return [TopicPartition(*partition) for partition in partitions if partition in self._assigned]


def _asked(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]


def _partitions(given: Iterable[TopicPartition]) -> list[Partition]:
    return [Partition(each.topic, each.partition) for each in given]
