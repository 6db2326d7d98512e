"""The Kafka adapters while the way to the broker is frozen or cut: every call ends in time, and nothing stale comes true."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

import pytest

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.core.offsets import Partition
from pipeline.core.ports import Delivered
from pipeline.core.topics import TopicSpec
from pipeline.errors import BrokerUnavailable, PublishFailed, PublishUnknown
from tests.contract.brokers import Member, outgoing, rest, until
from tests.harness.proxy import Loss, ProxiedKafka, proxied_kafka
from tests.harness.requests import OFFSET_COMMIT, PRODUCE, kafka_request

pytestmark = pytest.mark.servers

SOON = 20.0  # many times the bounds that are set here, for a machine that is busy; far from for ever
QUICK = {"reconnect.backoff.max.ms": "500", "topic.metadata.refresh.interval.ms": "1000"}


@pytest.fixture(scope="module")
def running() -> Iterator[ProxiedKafka]:
    with proxied_kafka() as kafka:
        yield kafka


@pytest.fixture
def kafka(running: ProxiedKafka) -> Iterator[ProxiedKafka]:
    yield running
    running.proxy.heal()


@pytest.fixture
def topic(kafka: ProxiedKafka) -> Iterator[str]:
    admin = KafkaAdmin(admin_config(kafka.direct))
    name = f"t{uuid.uuid4().hex[:12]}"
    admin.create([TopicSpec(name, 1, 1)])
    yield name
    admin.delete([name])


def producer(
    bootstrap: str, *, timeout: float = 2, extra: Mapping[str, str] | None = None, patience: float = 5
) -> KafkaJobProducer:
    config = producer_config(
        bootstrap, linger_ms=0, delivery_timeout=timeout, extra={**QUICK, **(extra or {})}
    )
    return KafkaJobProducer(config, buffer_timeout=patience)


def consumer(bootstrap: str, group: str, *, timeout: float = 2) -> KafkaJobConsumer:
    return KafkaJobConsumer(
        consumer_config(bootstrap, group=group, session_timeout=6, extra=QUICK), timeout=timeout
    )


def committed(kafka: ProxiedKafka, group: str, topic: str) -> int | None:
    return KafkaAdmin(admin_config(kafka.direct)).group_lag(group, [topic])[Partition(topic, 0)].committed


def seconds(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def test_a_write_that_gets_no_answer_ends_as_unknown_and_the_next_one_succeeds(
    kafka: ProxiedKafka, topic: str
) -> None:
    with closing(producer(kafka.proxied)) as sender:
        assert sender.send_all([outgoing(topic)])[0].error is None
        kafka.proxy.freeze()
        ended: list[list[Delivered]] = []
        assert seconds(lambda: ended.append(sender.send_all([outgoing(topic)]))) < SOON
        assert isinstance(ended[0][0].error, PublishUnknown)
        kafka.proxy.heal()
        assert sender.send_all([outgoing(topic)])[0].error is None


def test_a_short_cut_loses_nothing_doubles_nothing_and_keeps_the_order(
    kafka: ProxiedKafka, topic: str
) -> None:
    ends: list[Delivered] = []
    with closing(producer(kafka.proxied, timeout=30)) as sender:
        for number in range(300):
            if number in (100, 200):
                kafka.proxy.cut()
            if number in (120, 240):
                kafka.proxy.heal()
            sender.send(outgoing(topic, b"%d" % number), ends.append)
        kafka.proxy.heal()
        assert sender.flush(30) == 0
    assert all(end.error is None for end in ends)
    member = Member(consumer(kafka.direct, uuid.uuid4().hex))
    with closing(member.consumer):
        member.consumer.subscribe([topic], member)
        until(lambda: len(member.records) >= 300, member)
        assert [int(value or b"") for value in member.values()] == list(range(300))


@contextmanager
def full_producer(
    kafka: ProxiedKafka, topic: str, *, timeout: float, patience: float
) -> Iterator[KafkaJobProducer]:
    """One whose buffer is full while the way is frozen; once that is healed all is written."""
    few = {"queue.buffering.max.messages": "10"}
    with closing(producer(kafka.proxied, timeout=timeout, extra=few, patience=patience)) as sender:
        assert sender.send_all([outgoing(topic)])[0].error is None
        kafka.proxy.freeze()
        for _ in range(10):
            sender.send(outgoing(topic))
        yield sender
        kafka.proxy.heal()
        assert sender.flush(20) == 0


def test_a_full_buffer_makes_publishing_fail_after_a_bound_not_for_ever(
    kafka: ProxiedKafka, topic: str
) -> None:
    with (
        full_producer(kafka, topic, timeout=20, patience=1) as sender,
        pytest.raises(PublishFailed, match="buffer was full for 1 s"),
    ):
        sender.send(outgoing(topic))


def test_publishing_goes_on_as_soon_as_a_full_buffer_has_room(kafka: ProxiedKafka, topic: str) -> None:
    with full_producer(kafka, topic, timeout=60, patience=60) as sender:
        threading.Timer(0.2, kafka.proxy.heal).start()
        assert seconds(partial(sender.send, outgoing(topic))) < SOON


def test_one_wait_for_room_serves_a_whole_batch(kafka: ProxiedKafka, topic: str) -> None:
    few = {"queue.buffering.max.messages": "10"}
    with closing(producer(kafka.proxied, timeout=3, extra=few, patience=1)) as sender:
        assert sender.send_all([outgoing(topic)])[0].error is None
        kafka.proxy.freeze()
        ended: list[list[Delivered]] = []
        assert seconds(lambda: ended.append(sender.send_all([outgoing(topic)] * 50))) < SOON  # not 40 waits
        kinds = [type(end.error) for end in ended[0]]
        assert kinds == [PublishUnknown] * 10 + [PublishFailed] * 40


@pytest.mark.parametrize("answers", [True, False])
def test_a_producer_whose_writes_only_time_out_is_replaced_if_kafka_answers(
    kafka: ProxiedKafka,
    topic: str,
    *,
    answers: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pipeline.adapters.kafka.producer._LEAST_PATIENCE", 2.0)
    caplog.set_level("ERROR", logger="pipeline.kafka")

    def replaced() -> int:
        return sum(getattr(line, "action", "") == "producer_replaced" for line in caplog.records)

    with closing(producer(kafka.proxied, timeout=1)) as sender:
        assert sender.send_all([outgoing(topic)])[0].error is None
        if answers:
            kafka.proxy.trap(kafka_request(PRODUCE), loss=Loss.REQUEST, times=1_000_000)
        else:
            kafka.proxy.cut()
        for _ in range(6):
            assert isinstance(sender.send_all([outgoing(topic)])[0].error, PublishUnknown)
        if answers:
            # On a busy machine Kafka may have answered the question too late, which is asked again then.
            until(lambda: bool(replaced() or not sender.send_all([outgoing(topic)])))
        assert bool(replaced()) is answers
        kafka.proxy.heal()
        until(lambda: sender.send_all([outgoing(topic)])[0].error is None)


def test_closing_a_producer_ends_what_is_under_way(kafka: ProxiedKafka, topic: str) -> None:
    sender = producer(kafka.proxied, timeout=60)
    assert sender.send_all([outgoing(topic)])[0].error is None
    kafka.proxy.freeze()
    ends: list[Delivered] = []
    for _ in range(5):
        sender.send(outgoing(topic), ends.append)
    assert sender.flush(0.1) == 5
    assert seconds(lambda: sender.close(timeout=0.5)) < SOON
    assert [type(end.error) for end in ends] == [PublishUnknown] * 5


def test_a_commit_that_is_waited_for_ends_in_time(kafka: ProxiedKafka, topic: str) -> None:
    group = uuid.uuid4().hex
    member = Member(consumer(kafka.proxied, group))
    with closing(member.consumer):
        member.consumer.subscribe([topic], member)
        until(lambda: bool(member.owned), member)
        kafka.proxy.freeze()
        results: list[bool] = []
        assert (
            seconds(lambda: results.append(member.consumer.commit({Partition(topic, 0): 3}, wait=True)))
            < SOON
        )
        assert results == [False]
        assert member.consumer.failed_commits() == [Partition(topic, 0)]


def test_closing_a_consumer_ends_in_time_also_with_a_commit_under_way(
    kafka: ProxiedKafka, topic: str
) -> None:
    member = Member(consumer(kafka.proxied, uuid.uuid4().hex))
    member.consumer.subscribe([topic], member)
    until(lambda: bool(member.owned), member)
    kafka.proxy.freeze()
    member.consumer.commit({Partition(topic, 0): 3}, wait=False)
    assert seconds(member.consumer.close) < SOON
    assert member.told("revoked") == [Partition(topic, 0)]


def test_a_commit_under_way_when_the_worker_was_cut_off_does_not_come_true_later(
    kafka: ProxiedKafka, topic: str
) -> None:
    group = uuid.uuid4().hex
    partition = Partition(topic, 0)
    with closing(producer(kafka.direct)) as sender:
        sender.send_all([outgoing(topic)] * 50)
    cut_off = Member(consumer(kafka.proxied, group))
    other = Member(consumer(kafka.direct, group, timeout=SOON))
    with closing(cut_off.consumer), closing(other.consumer):
        cut_off.consumer.subscribe([topic], cut_off)
        until(lambda: len(cut_off.records) == 50, cut_off)
        other.consumer.subscribe([topic], other)
        kafka.proxy.cut()
        cut_off.consumer.commit({partition: 5}, wait=False)
        until(lambda: partition in other.owned, other, cut_off, seconds=40)
        assert other.consumer.commit({partition: 40}, wait=True)
        until(lambda: cut_off.told("lost") == [partition], other, cut_off)
        kafka.proxy.heal()
        refused: list[Partition] = []

        def is_answered() -> bool:
            refused.extend(cut_off.consumer.failed_commits())
            assert committed(kafka, group, topic) == 40
            return partition in refused

        until(is_answered, other, cut_off, seconds=40)
        rest(other, cut_off, seconds=3)
        assert committed(kafka, group, topic) == 40


def test_subscribing_without_a_broker_is_a_plain_error_within_its_bound(
    kafka: ProxiedKafka, topic: str
) -> None:
    member = Member(consumer("127.0.0.1:1", uuid.uuid4().hex))
    with closing(member.consumer):
        start = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"no answer from Kafka at 127\.0\.0\.1:1 within 2 s"):
            member.consumer.subscribe([topic], member)
        assert time.monotonic() - start < SOON


def test_polling_goes_on_through_an_outage_and_says_little(
    kafka: ProxiedKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(consumer(kafka.proxied, uuid.uuid4().hex))
    with closing(member.consumer), closing(producer(kafka.direct)) as sender:
        member.consumer.subscribe([topic], member)
        until(lambda: bool(member.owned), member)
        kafka.proxy.cut()
        start = time.monotonic()
        until(lambda: time.monotonic() - start > 3, member)
        assert len(caplog.records) < 12
        kafka.proxy.heal()
        sender.send_all([outgoing(topic)])
        until(lambda: len(member.records) == 1, member)


def test_a_consumer_that_does_not_find_kafka_while_others_do_begins_anew(
    kafka: ProxiedKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose client has forgotten its brokers: here its way is cut for good, and a new client knows another."""
    found = consumer(kafka.proxied, uuid.uuid4().hex)
    member = Member(found)

    def forgotten() -> int:
        return sum(getattr(line, "action", "") == "cluster_forgotten" for line in caplog.records)

    with closing(found), closing(producer(kafka.direct)) as sender:
        found.subscribe([topic], member)
        until(lambda: bool(member.owned), member)
        kafka.proxy.cut()
        found._cluster._patience = 1.0
        until(lambda: not member.owned, member)
        rest(member, seconds=3)
        assert not member.owned, "a fresh client does not find it either"
        for config in (found._config, found._cluster._config):
            config["bootstrap.servers"] = kafka.direct
        until(lambda: forgotten() == 1, member, seconds=40)
        found._cluster._patience = 60.0  # the new one may take its time to join
        until(lambda: bool(member.owned), member, seconds=40)
        sender.send_all([outgoing(topic)])
        until(lambda: len(member.records) == 1, member)
    assert forgotten() == 1


def test_a_commit_that_is_sent_again_after_a_reset_does_not_undo_a_newer_one(
    kafka: ProxiedKafka, topic: str
) -> None:
    group = uuid.uuid4().hex
    partition = Partition(topic, 0)
    member = Member(consumer(kafka.proxied, group))
    with closing(member.consumer), closing(producer(kafka.direct)) as sender:
        sender.send_all([outgoing(topic, b"%d" % number) for number in range(50)])
        member.consumer.subscribe([topic], member)
        until(lambda: len(member.records) == 50, member)
        lost = kafka.proxy.trap(kafka_request(OFFSET_COMMIT), loss=Loss.REQUEST)
        member.consumer.commit({partition: 5}, wait=False)
        until(lost.is_sprung, member)
        member.consumer.commit({partition: 40}, wait=False)
        seen: list[int] = []

        def is_committed() -> bool:
            if partition in member.consumer.failed_commits():
                member.consumer.commit({partition: 40}, wait=False)
            seen.append(committed(kafka, group, topic) or 0)
            return seen[-1] == 40

        until(is_committed, member)
        rest(member, seconds=3)
        assert [*seen, committed(kafka, group, topic)] == sorted([*seen, 40])


def test_a_commit_that_is_waited_for_takes_along_the_one_that_is_under_way(
    kafka: ProxiedKafka, topic: str
) -> None:
    group = uuid.uuid4().hex
    partition = Partition(topic, 0)
    member = Member(consumer(kafka.proxied, group, timeout=SOON))
    with closing(member.consumer):
        member.consumer.subscribe([topic], member)
        until(lambda: partition in member.owned, member)
        lost = kafka.proxy.trap(kafka_request(OFFSET_COMMIT), loss=Loss.REQUEST)
        member.consumer.commit({partition: 5}, wait=False)
        until(lost.is_sprung, member)
        assert member.consumer.commit({}, wait=True)
        assert committed(kafka, group, topic) == 5
