"""Joining the group anew: what a worker does about a partition that its client has lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.core.ports import Outgoing
from tests.contract.brokers import Broker, InMemory, Real, opened, until


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.servers)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "memory":
        chosen: Broker = InMemory()
    else:
        chosen = Real(request.getfixturevalue("servers").bootstrap_servers)
    with opened(chosen):
        yield chosen


def publish(broker: Broker, topic: str, *values: bytes) -> None:
    ends = broker.producer().send_all([Outgoing(topic, b"key", value, []) for value in values])
    assert all(each.error is None for each in ends)


def test_a_member_that_joins_anew_gives_up_all_and_reads_on_from_what_was_committed(broker: Broker) -> None:
    topic = broker.topic()
    publish(broker, topic, b"1", b"2", b"3")
    member = broker.joined(topic, partitions=1)
    until(lambda: len(member.records) == 3, member)
    (partition,) = member.owned
    assert member.consumer.commit({partition: 2}, wait=True)
    member.consumer.rejoin([partition])
    assert member.told("revoked") == [partition]
    until(lambda: member.owned == {partition}, member)
    until(lambda: len(member.records) == 4, member)
    publish(broker, topic, b"4")
    until(lambda: len(member.records) == 5, member)
    assert member.values() == [b"1", b"2", b"3", b"3", b"4"]
    assert member.told("lost") == []


def test_what_was_paused_is_read_again_after_joining_anew(broker: Broker) -> None:
    topic = broker.topic()
    member = broker.joined(topic, partitions=1)
    member.consumer.pause(sorted(member.owned))
    publish(broker, topic, b"1")
    member.consumer.rejoin(sorted(member.owned))
    until(lambda: member.values() == [b"1"], member)


def test_the_offsets_can_be_committed_while_it_gives_up(broker: Broker) -> None:
    topic = broker.topic()
    publish(broker, topic, b"1", b"2")
    member = broker.joined(topic, partitions=1)
    until(lambda: len(member.records) == 2, member)
    member.before_revoke = lambda partitions: member.consumer.commit(dict.fromkeys(partitions, 2), wait=True)
    member.consumer.rejoin(sorted(member.owned))
    assert set(broker.committed(topic).values()) == {2}


def test_the_others_of_the_group_go_on(broker: Broker) -> None:
    topic = broker.topic(2)
    first, second = broker.member(topic), broker.member(topic)
    until(lambda: len(first.owned) == len(second.owned) == 1, first, second)
    first.consumer.rejoin(sorted(first.owned))
    until(lambda: len(first.owned) == len(second.owned) == 1, first, second)
    assert second.told("lost") == []


def test_one_that_has_left_stays_away(broker: Broker) -> None:
    topic = broker.topic()
    member = broker.joined(topic, partitions=1)
    member.consumer.close()
    member.consumer.rejoin([])
    other = broker.joined(topic, partitions=1)
    assert len(other.owned) == 1
