"""Commits that were sent and not answered yet."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipeline.adapters.kafka.commits import ANSWER_SECONDS, CommitsUnderWay
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.core.offsets import Partition

ONE, TWO = Partition("jobs", 1), Partition("jobs", 2)


def test_a_partition_waits_for_the_answer_to_its_last_commit() -> None:
    commits = CommitsUnderWay()
    commits.sent({ONE: 5}, now=100.0)
    assert commits.busy([ONE, TWO], now=101.0) == [ONE]
    commits.answered([ONE])
    assert commits.busy([ONE, TWO], now=101.0) == []


def test_an_answer_that_never_comes_is_not_waited_for_for_ever() -> None:
    commits = CommitsUnderWay()
    commits.sent({ONE: 5}, now=100.0)
    assert commits.busy([ONE], now=100.0 + ANSWER_SECONDS) == []


def test_a_last_commit_takes_along_what_is_under_way_and_never_falls_behind_it() -> None:
    commits = CommitsUnderWay()
    commits.sent({ONE: 5, TWO: 9}, now=100.0)
    assert commits.with_last({ONE: 7}) == {ONE: 7, TWO: 9}
    assert commits.with_last({TWO: 3}) == {ONE: 5, TWO: 9}
    commits.answered([ONE, TWO])
    assert commits.with_last({ONE: 7}) == {ONE: 7}


class ChangingGroup:
    """A client that Kafka refuses so many commits, for these reasons, and takes the next one of."""

    def __init__(self, *refusals: int) -> None:
        self._refusals = list(refusals)
        self.taken: list[TopicPartition] = []
        self.asked = 0

    def committed(self, asked: list[TopicPartition], **_: float) -> list[TopicPartition]:
        return asked

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous
        self.asked += 1
        if self._refusals:
            raise KafkaException(KafkaError(self._refusals.pop(0)))
        self.taken = offsets
        return offsets


class OnClient(KafkaJobConsumer):
    """A consumer that owns one partition, on a client of our own."""

    def __init__(self, client: ChangingGroup, *, timeout: float) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}, timeout=timeout)
        self._consumer.close()
        self._consumer = client  # type: ignore[assignment]
        self._assigned.add(ONE)


def test_a_commit_that_is_waited_for_is_tried_again_while_the_group_changes() -> None:
    client = ChangingGroup(
        KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH
    )
    consumer = OnClient(client, timeout=60)
    assert consumer.commit({ONE: 5}, wait=True)
    assert [(each.topic, each.partition, each.offset) for each in client.taken] == [("jobs", 1, 5)]
    assert consumer.failed_commits() == []


def test_it_is_given_up_when_the_change_takes_too_long_or_the_refusal_is_for_good() -> None:
    for code, timeout, tries in (
        (KafkaError.REBALANCE_IN_PROGRESS, 0.0, 1),
        (KafkaError.UNKNOWN_MEMBER_ID, 60.0, 1),
    ):
        client = ChangingGroup(*[code] * 100)
        consumer = OnClient(client, timeout=timeout)
        assert not consumer.commit({ONE: 5}, wait=True)
        assert consumer.failed_commits() == [ONE]
        assert client.asked == tries
