"""The in-memory broker where real Kafka cannot be held still: shares, waiting, outages. The rest is in its contract."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.adapters.memory_broker import MemoryBroker, MemoryJobConsumer
from pipeline.core.clock import ManualClock
from pipeline.core.offsets import Partition
from pipeline.core.ports import Outgoing
from pipeline.errors import ConfigError, PublishUnknown
from tests.contract.brokers import Member, outgoing


def settle(members: list[Member]) -> None:
    """Poll everybody often enough: each gives up in one poll, and takes in a later one."""
    for _ in range(3):
        for member in members:
            member.consumer.poll(0, 0)


def joined(broker: MemoryBroker, *topics: str) -> Member:
    member = Member(broker.consumer("g"))
    member.consumer.subscribe(topics, member)
    return member


def consumer_of(member: Member) -> MemoryJobConsumer:
    assert isinstance(member.consumer, MemoryJobConsumer)
    return member.consumer


@given(
    partitions=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.sampled_from(["join", "leave", "expire", "grow"]), st.integers(0, 9)), max_size=12
    ),
)
def test_every_partition_has_one_owner_and_shares_are_even(
    partitions: int, steps: list[tuple[str, int]]
) -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t", partitions)
    members = [joined(broker, "t")]
    for step, choice in steps:
        chosen = members[choice % len(members)] if members else None
        if step == "join" or chosen is None:
            members.append(joined(broker, "t"))
        elif step == "leave":
            members.remove(chosen)
            chosen.consumer.close()
        elif step == "expire":
            broker.expire(consumer_of(chosen))
        else:
            partitions += 1
            broker.add_partitions("t", partitions)
        settle(members)
        if members:
            owned = [partition for member in members for partition in member.owned]
            assert sorted(owned) == [Partition("t", number) for number in range(partitions)]
            sizes = [len(member.owned) for member in members]
            assert max(sizes) - min(sizes) <= 1


def test_a_member_that_joins_takes_no_more_than_its_share() -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t", 9)
    members = [joined(broker, "t"), joined(broker, "t")]
    settle(members)
    before = [set(member.owned) for member in members]
    members.append(joined(broker, "t"))
    settle(members)
    assert len(members[2].owned) == 3
    assert all(member.owned <= had for member, had in zip(members, before, strict=False))


def test_a_partition_is_not_taken_before_its_owner_gave_it_up() -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t", 2)
    first = joined(broker, "t")
    settle([first])
    second = joined(broker, "t")
    settle([second])
    assert second.owned == set()
    settle([first])
    settle([second])
    assert len(second.owned) == 1


def test_two_runs_give_the_same_records_in_the_same_order() -> None:
    def run() -> list[tuple[int, int]]:
        broker = MemoryBroker(ManualClock())
        broker.create_topic("t", 3)
        broker.producer().send_all([outgoing("t", key=None) for _ in range(20)])
        member = joined(broker, "t")
        for _ in range(12):
            member.poll(2)
        return [(record.partition, record.offset) for record in member.records]

    assert run() == run()


def test_a_poll_without_time_does_not_wait_and_one_with_time_wakes_for_a_record() -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t")
    member = joined(broker, "t")
    member.consumer.poll(1, 0)
    start = time.monotonic()
    assert member.consumer.poll(1, 0) == []
    broker.producer().send_all([outgoing("t")])
    assert len(member.consumer.poll(1, 60)) == 1
    assert time.monotonic() - start < 30


def test_records_carry_the_time_of_the_clock() -> None:
    clock = ManualClock(1000.0)
    broker = MemoryBroker(clock)
    broker.create_topic("t")
    clock.advance(5)
    broker.producer().send_all([outgoing("t")])
    assert [record.timestamp for record in broker.records("t")] == [1005.0]


def test_an_outage_can_be_played() -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t")
    outage = PublishUnknown("no answer")

    def judge(record: Outgoing) -> PublishUnknown | None:
        return outage if record.value == b"bad" else None

    broker.refuse_writes(judge)
    ends = broker.producer().send_all([outgoing("t", b"good"), outgoing("t", b"bad")])
    assert [end.error for end in ends] == [None, outage]
    assert [record.value for record in broker.records("t")] == [b"good"]


def test_what_a_group_committed_can_be_looked_at() -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t")
    member = joined(broker, "t")
    settle([member])
    assert broker.committed("g") == broker.committed("other") == {}
    assert member.consumer.commit({Partition("t", 0): 3}, wait=False)
    assert broker.committed("g") == {Partition("t", 0): 3}


@pytest.mark.parametrize(("name", "partitions"), [("t", 1), ("u", 0)])
def test_a_topic_is_created_once_and_with_partitions(name: str, partitions: int) -> None:
    broker = MemoryBroker(ManualClock())
    broker.create_topic("t")
    with pytest.raises(ConfigError, match="allowed: a new name, 1 or more"):
        broker.create_topic(name, partitions)
