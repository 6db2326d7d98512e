"""What a broker promises the runtime, held to by the real Kafka and by its in-memory twin."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from pipeline.core.offsets import Partition
from pipeline.core.partitioner import partition_of
from pipeline.core.ports import Delivered, KeyedValue, Outgoing
from pipeline.errors import PayloadTooLarge, PublishFailed, TopicsMissing
from tests.contract.brokers import LIMIT, Broker, InMemory, Real, opened, outgoing, rest, until


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.servers)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "memory":
        chosen: Broker = InMemory()
    else:
        chosen = Real(request.getfixturevalue("servers").bootstrap_servers)
    with opened(chosen):
        yield chosen


# --- producing


def test_a_record_is_read_as_it_was_written(broker: Broker) -> None:
    topic = broker.topic()
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("ä", b"\x00\xff"), ("a", b""), ("none", None)]
    written = [
        Outgoing(topic, b"key", b"\x00value\xff", headers),
        Outgoing(topic, b"", b"", []),
        Outgoing(topic, None, None, []),
    ]
    ends = broker.producer().send_all(written)
    member = broker.member(topic)
    until(lambda: len(member.records) == len(written), member)
    assert [Outgoing(r.topic, r.key, r.value, r.headers) for r in member.records] == written
    assert [record.source for record in member.records] == [end.source for end in ends]
    assert all(abs(record.timestamp - time.time()) < 60 for record in member.records)


def test_a_key_has_the_partition_that_murmur2_gives_it(broker: Broker) -> None:
    topic = broker.topic(7)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", "tenant-ü#3".encode(), bytes(range(256)), b"x" * 1001]
    ends = broker.producer().send_all([outgoing(topic, key=key) for key in keys])
    assert [end.source.partition if end.source else None for end in ends] == [
        partition_of(key, 7) for key in keys
    ]


def test_records_of_a_partition_keep_their_order(broker: Broker) -> None:
    topic = broker.topic(3)
    values = [b"%d" % number for number in range(500)]
    ends = broker.producer().send_all([outgoing(topic, value, key=value[-1:]) for value in values])
    assert all(end.error is None for end in ends)
    member = broker.member(topic)
    until(lambda: len(member.records) == len(values), member)
    for number in range(3):
        read = [int(r.value or b"") for r in member.records if r.partition == number]
        assert read == sorted(read)


def test_each_send_ends_in_one_callback(broker: Broker) -> None:
    topic = broker.topic()
    producer, ends = broker.producer(), list[Delivered]()
    for number in range(50):
        producer.send(outgoing(topic, b"%d" % number), ends.append)
    assert producer.flush(10) == 0
    assert [end.source.offset for end in ends if end.source] == list(range(50))


def test_a_callback_that_raises_harms_no_other_write(broker: Broker) -> None:
    topic = broker.topic()
    producer, ended = broker.producer(), threading.Event()

    def fail(_delivered: Delivered) -> None:
        raise RuntimeError("a bug of the caller")

    producer.send(outgoing(topic), fail)
    producer.send(outgoing(topic), lambda _delivered: ended.set())
    assert ended.wait(10)
    assert producer.flush(10) == 0


def test_a_record_that_is_too_large_fails_alone(broker: Broker) -> None:
    topic = broker.topic()
    producer = broker.producer()
    large = outgoing(topic, b"x" * (LIMIT + 1))
    ends = producer.send_all([outgoing(topic), large, outgoing(topic)])
    assert [type(end.error) for end in ends] == [type(None), PayloadTooLarge, type(None)]
    with pytest.raises(PayloadTooLarge, match=f"at most {LIMIT}"):
        producer.send(large)


def test_writing_to_a_missing_topic_fails_and_names_it(broker: Broker) -> None:
    there = broker.topic()
    good, bad = broker.producer().send_all([outgoing(there), outgoing("missing-topic")])
    assert good.error is None
    assert type(bad.error) is PublishFailed
    assert "missing-topic" in str(bad.error)
    assert "pipeline topics apply" in str(bad.error)


class Ends:
    """How the records of a `send_many` ended."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.refused: list[tuple[KeyedValue, Exception]] = []

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def refuse(self, record: KeyedValue, error: Exception) -> None:
        self.refused.append((record, error))


def send_many(broker: Broker, topic: str, records: Sequence[KeyedValue]) -> Ends:
    producer, ends = broker.producer(), Ends()
    producer.send_many(topic, records, on_acknowledged=ends.acknowledge, on_refused=ends.refuse)
    assert producer.flush(30) == 0
    return ends


def test_many_records_at_once_lie_where_single_ones_would(broker: Broker) -> None:
    topic = broker.topic(7)
    records = [(b"key %d" % number, b"%d" % number) for number in range(300)]
    ends = send_many(broker, topic, records)
    assert (ends.acknowledged, ends.refused) == (300, [])
    member = broker.member(topic)
    until(lambda: len(member.records) == len(records), member)
    assert {(r.key, r.value): r.partition for r in member.records} == {
        record: partition_of(record[0], 7) for record in records
    }


def test_of_many_records_only_the_guilty_one_is_refused(broker: Broker) -> None:
    large = (b"k", b"x" * (LIMIT + 1))
    ends = send_many(broker, broker.topic(), [(b"k", b"1"), large, (b"k", b"2")])
    assert ends.acknowledged == 2
    ((record, error),) = ends.refused
    assert record == large
    assert type(error) is PayloadTooLarge


def test_many_records_for_a_missing_topic_are_each_refused(broker: Broker) -> None:
    records = [(b"k", b"%d" % number) for number in range(3)]
    ends = send_many(broker, "missing-topic", records)
    assert ends.acknowledged == 0
    assert sorted(record for record, _ in ends.refused) == records
    assert {type(error) for _, error in ends.refused} == {PublishFailed}


def test_many_records_for_a_closed_producer_are_each_refused(broker: Broker) -> None:
    producer, ends = broker.producer(), Ends()
    producer.close()
    producer.send_many(
        broker.topic(), [(b"k", b"1")], on_acknowledged=ends.acknowledge, on_refused=ends.refuse
    )
    assert [type(error) for _, error in ends.refused] == [PublishFailed]


def test_a_closed_producer_takes_nothing(broker: Broker) -> None:
    producer = broker.producer()
    producer.close()
    with pytest.raises(PublishFailed, match="closed"):
        producer.send(outgoing(broker.topic()))
    producer.close()  # twice is harmless


def test_many_threads_may_write_with_one_producer(broker: Broker) -> None:
    topic = broker.topic(4)
    producer = broker.producer()
    ends: dict[int, list[Delivered]] = {}

    def write(number: int) -> None:
        ends[number] = producer.send_all([outgoing(topic, b"%d" % number, key=b"%d" % i) for i in range(200)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    sources = {end.source for batch in ends.values() for end in batch}
    assert len(sources) == 800
    assert None not in sources


# --- polling


def test_a_poll_gives_no_more_records_than_asked_for(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.producer().send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(20)])
    member = broker.joined(topic, partitions=2)
    sizes: list[int] = []
    until(lambda: not sizes.append(len(member.poll(3))) and len(member.records) == 20)  # type: ignore[func-returns-value]
    assert max(sizes) <= 3


def test_subscribing_to_missing_topics_names_each_of_them(broker: Broker) -> None:
    there = broker.topic()
    with pytest.raises(TopicsMissing, match=r"missing: gone-1, gone-2;.*pipeline topics apply"):
        broker.member(there, "gone-1", "gone-2")


def test_paused_partitions_give_nothing_and_go_on_where_they_were(broker: Broker) -> None:
    topic = broker.topic(2)
    keys = {partition_of(b"%d" % n, 2): b"%d" % n for n in range(10)}
    records = [outgoing(topic, b"%d" % n, key=keys[part]) for n in range(100) for part in (0, 1)]
    broker.producer().send_all(records)
    member = broker.joined(topic, partitions=2)
    until(lambda: bool(member.records or member.poll(1)))
    paused = Partition(topic, member.records[-1].partition)
    member.consumer.pause([paused])
    before = [r for r in member.records if r.partition == paused.number]
    until(lambda: sum(r.partition != paused.number for r in member.records) == 100, member)
    rest(member)
    assert [r for r in member.records if r.partition == paused.number] == before
    member.consumer.resume([paused])
    until(lambda: len(member.records) == 200, member)
    assert [r.offset for r in member.records if r.partition == paused.number] == list(range(100))


@pytest.mark.parametrize("seconds", [0.1, 1.0], ids=["a moment", "long"])
def test_a_member_that_is_paused_altogether_goes_on_where_it_was(broker: Broker, seconds: float) -> None:
    topic = broker.topic(2)
    broker.producer().send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(200)])
    member = broker.joined(topic, partitions=2)
    until(lambda: bool(member.records or member.poll(1)))
    member.consumer.pause(sorted(member.owned))
    before = list(member.records)
    rest(member, seconds=seconds)
    assert member.records == before
    member.consumer.resume(sorted(member.owned))
    until(lambda: len(member.records) == 200, member)
    for number in (0, 1):
        offsets = [record.offset for record in member.records if record.partition == number]
        assert offsets == list(range(len(offsets)))


def test_pausing_a_partition_of_somebody_else_is_harmless(broker: Broker) -> None:
    topic = broker.topic()
    member = broker.joined(topic, partitions=1)
    member.consumer.pause([Partition(topic, 99), Partition("other", 0)])
    member.consumer.resume([Partition(topic, 99), Partition("other", 0)])
    broker.producer().send_all([outgoing(topic)])
    until(lambda: len(member.records) == 1, member)


def test_a_listener_may_pause_what_it_is_given_before_a_record_comes(broker: Broker) -> None:
    topic = broker.topic()
    broker.producer().send_all([outgoing(topic)])
    member = broker.member(topic)
    member.on_assign = member.consumer.pause
    until(lambda: len(member.owned) == 1, member)
    rest(member)
    assert member.records == []
    member.consumer.resume([Partition(topic, 0)])
    until(lambda: len(member.records) == 1, member)


def test_an_error_of_the_listener_comes_out_of_poll_and_costs_no_record(broker: Broker) -> None:
    topic = broker.topic(3)
    broker.producer().send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(30)])
    member = broker.member(topic)

    def fail(_partitions: object) -> None:
        member.on_assign = lambda _partitions: None
        raise LookupError("a bug of the listener")

    member.on_assign = fail
    with pytest.raises(LookupError, match="a bug of the listener"):
        until(lambda: False, member)
    until(lambda: len(member.records) == 30, member)


# --- committing


def test_the_next_member_begins_at_the_committed_offset(broker: Broker) -> None:
    topic = broker.topic()
    broker.producer().send_all([outgoing(topic, b"%d" % n) for n in range(10)])
    first = broker.member(topic)
    until(lambda: len(first.records) == 10, first)
    assert first.consumer.commit({Partition(topic, 0): 6}, wait=True)
    first.consumer.close()
    second = broker.member(topic)
    until(lambda: len(second.records) == 4, second)
    assert second.records[0].offset == 6


def test_without_a_commit_every_record_comes_again(broker: Broker) -> None:
    topic = broker.topic()
    broker.producer().send_all([outgoing(topic, b"%d" % n) for n in range(10)])
    first = broker.member(topic)
    until(lambda: len(first.records) == 10, first)
    first.consumer.close()
    second = broker.member(topic)
    until(lambda: len(second.records) == 10, second)
    assert second.values() == first.values()


def test_a_commit_that_is_not_waited_for_arrives(broker: Broker) -> None:
    topic = broker.topic()
    broker.producer().send_all([outgoing(topic) for _ in range(5)])
    member = broker.member(topic)
    until(lambda: len(member.records) == 5, member)
    assert member.consumer.commit({Partition(topic, 0): 5}, wait=False)
    until(lambda: broker.committed(topic) == {Partition(topic, 0): 5}, member)
    assert member.consumer.failed_commits() == []


def test_a_commit_for_a_partition_that_is_not_owned_is_refused(broker: Broker) -> None:
    topic = broker.topic(2)
    owner, other = broker.member(topic), broker.member(topic)
    until(lambda: len(owner.owned) == len(other.owned) == 1, owner, other)
    foreign, own = next(iter(owner.owned)), next(iter(other.owned))
    assert owner.consumer.commit({foreign: 7}, wait=True)
    assert not other.consumer.commit({foreign: 3, own: 4}, wait=True)
    assert other.consumer.failed_commits() == [foreign]
    assert other.consumer.failed_commits() == []
    assert broker.committed(topic) == {foreign: 7, own: 4}


def test_lag_counts_from_the_first_record_and_then_from_what_is_committed(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.producer().send_all([outgoing(topic, key=b"%d" % n) for n in range(40)])
    member = broker.joined(topic, partitions=2)
    until(lambda: len(member.records) == 40, member)
    until(lambda: member.consumer.lag() == {topic: 40}, member)
    ends = {Partition(topic, r.partition): r.offset + 1 for r in member.records}
    assert member.consumer.commit(ends, wait=True)
    assert member.consumer.lag() == {topic: 0}


# --- rebalances


def test_a_second_member_takes_its_share_after_the_first_gave_it_up(broker: Broker) -> None:
    topic = broker.topic(4)
    first = broker.joined(topic, partitions=4)
    kept_during_revoke: list[bool] = []
    first.before_revoke = lambda partitions: kept_during_revoke.append(
        first.consumer.commit(dict.fromkeys(partitions, 0), wait=True)
    )
    second = broker.member(topic)
    until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
    assert first.owned.isdisjoint(second.owned)
    assert set(first.told("revoked")) == set(second.told("assigned"))  # nothing else moved
    assert kept_during_revoke == [True]  # the last moment to commit is still good for it
    assert first.told("lost") == second.told("lost") == []


def test_what_was_committed_on_revoke_is_where_the_next_owner_begins(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.producer().send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(60)])
    first = broker.joined(topic, partitions=2)
    until(lambda: len(first.records) == 60, first)

    def commit_all(partitions: object) -> None:
        ends = {Partition(topic, r.partition): r.offset + 1 for r in first.records}
        first.consumer.commit({p: end for p, end in ends.items() if p in partitions}, wait=True)  # type: ignore[operator]

    first.before_revoke = commit_all
    second = broker.member(topic)
    until(lambda: len(second.owned) == 1, first, second)
    rest(first, second)
    assert second.records == []


def test_leaving_gives_partitions_back_and_others_go_on(broker: Broker) -> None:
    topic = broker.topic(3)
    first = broker.joined(topic, partitions=3)
    second = broker.member(topic)
    until(lambda: len(first.owned) + len(second.owned) == 3 and bool(second.owned), first, second)
    left = set(second.owned)
    second.consumer.close()
    assert set(second.told("revoked")) == left
    until(lambda: len(first.owned) == 3, first)
    broker.producer().send_all([outgoing(topic, key=b"%d" % n) for n in range(30)])
    until(lambda: len(first.records) == 30, first)


def test_a_pause_ends_with_the_assignment(broker: Broker) -> None:
    topic = broker.topic(2)
    first = broker.joined(topic, partitions=2)
    first.consumer.pause([Partition(topic, 0), Partition(topic, 1)])
    second = broker.member(topic)
    until(lambda: len(first.owned) == len(second.owned) == 1, first, second)
    moved = next(iter(second.owned))
    second.consumer.close()
    until(lambda: len(first.owned) == 2, first)
    broker.producer().send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(20)])
    until(lambda: bool(first.records), first)
    assert {record.partition for record in first.records} == {moved.number}


def test_a_member_that_lost_its_session_is_told_so_and_commits_nothing(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.producer().send_all([outgoing(topic, b"%d" % n, key=b"%d" % n) for n in range(40)])
    frozen = broker.joined(topic, partitions=2)
    until(lambda: len(frozen.records) == 40, frozen)
    had = set(frozen.owned)
    other = broker.member(topic)
    other.on_assign = lambda partitions: other.consumer.commit(dict.fromkeys(partitions, 9), wait=True)
    broker.lose(frozen, to=other)
    frozen.consumer.commit(dict.fromkeys(had, 1), wait=False)
    frozen.poll()
    until(lambda: set(frozen.told("lost")) == had, frozen, other)
    until(lambda: set(frozen.consumer.failed_commits()) <= had, frozen, other)
    assert not frozen.consumer.commit(dict.fromkeys(had - frozen.owned, 1), wait=True)
    assert frozen.told("revoked") == []
    assert broker.committed(topic) == dict.fromkeys(had, 9)
