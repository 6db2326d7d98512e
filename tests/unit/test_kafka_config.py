"""Settings for librdkafka: promises cannot be configured away, and wrong keys are named without showing secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from pipeline.adapters.kafka.config import (
    admin_config,
    construct,
    consumer_config,
    delivery_timeout,
    is_cooperative,
    producer_config,
)
from pipeline.adapters.kafka.failures import ClientLog, delivery_error, noting_refusals, unavailable
from pipeline.errors import ConfigError

NOWHERE = "127.0.0.1:1"


def test_a_producer_keeps_every_promise_by_default() -> None:
    conf = producer_config("b:1", linger_ms=0.5, compression="zstd", delivery_timeout=12)
    assert conf["bootstrap.servers"] == "b:1"
    assert conf["enable.idempotence"] == "true"
    assert conf["acks"] == "all"
    assert conf["partitioner"] == "murmur2_random"
    assert conf["linger.ms"] == "0.5"
    assert conf["compression.type"] == "zstd"
    assert delivery_timeout(conf) == 12


def test_a_consumer_commits_by_hand_and_shares_each_topic_evenly() -> None:
    conf = consumer_config("b:1", group="g", session_timeout=9, max_poll_interval=60)
    assert conf["group.id"] == "g"
    assert conf["enable.auto.commit"] == "false"
    assert conf["enable.auto.offset.store"] == "false"
    assert conf["auto.offset.reset"] == "earliest"
    assert conf["session.timeout.ms"] == "9000"
    assert conf["max.poll.interval.ms"] == "60000"
    assert conf["partition.assignment.strategy"] == "cooperative-sticky"


def test_a_member_may_be_a_static_one() -> None:
    assert consumer_config("b:1", group="g", static_member_id="w-1")["group.instance.id"] == "w-1"
    assert "group.instance.id" not in consumer_config("b:1", group="g")


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_the_strategy_of_the_classic_protocol_can_be_chosen(protocol: str) -> None:
    conf = consumer_config("b:1", group="g", protocol=protocol)
    assert conf["partition.assignment.strategy"] == protocol
    assert is_cooperative(conf) is (protocol != "range")


@pytest.mark.parametrize("options", [{"protocol": "consumer"}, {"extra": {"group.protocol": "consumer"}}])
def test_the_new_group_protocol_leaves_out_what_the_broker_decides(options: dict[str, Any]) -> None:
    conf = consumer_config("b:1", group="g", session_timeout=9, **options)
    assert conf["group.protocol"] == "consumer"
    assert not {"session.timeout.ms", "partition.assignment.strategy", "heartbeat.interval.ms"} & conf.keys()
    assert is_cooperative(conf)
    construct(Consumer, {**conf, "bootstrap.servers": NOWHERE}, ClientLog()).close()


@pytest.mark.parametrize(
    ("strategy", "cooperative"),
    [("range,roundrobin", False), ("roundrobin", False), ("cooperative-sticky", True)],
)
def test_whether_a_strategy_is_cooperative_is_known(strategy: str, *, cooperative: bool) -> None:
    conf = consumer_config("b:1", group="g", extra={"partition.assignment.strategy": strategy})
    assert is_cooperative(conf) is cooperative


def test_any_other_key_passes_through_to_those_that_it_concerns() -> None:
    extra = {
        "security.protocol": "ssl",
        "linger.ms": "7",
        "fetch.min.bytes": "9",
        "client.id": "mine",
        "reconnect.backoff.max.ms": "1",
    }
    producer = producer_config("b:1", extra=extra)
    consumer = consumer_config("b:1", group="g", extra=extra)
    admin = admin_config("b:1", extra=extra)
    assert producer["linger.ms"] == "7"
    assert consumer["fetch.min.bytes"] == "9"
    assert not {"linger.ms", "queue.buffering.max.ms"} & (consumer.keys() | admin.keys())
    assert not {"fetch.min.bytes"} & (producer.keys() | admin.keys())
    for conf in (producer, consumer, admin):
        assert (conf["security.protocol"], conf["client.id"]) == ("ssl", "mine")
        assert conf["reconnect.backoff.max.ms"] == "1"


def test_another_name_for_a_key_of_ours_replaces_it() -> None:
    conf = producer_config(
        "b:1", delivery_timeout=9, extra={"message.timeout.ms": "4000", "compression.codec": "zstd"}
    )
    assert delivery_timeout(conf) == 4
    assert "delivery.timeout.ms" not in conf
    assert "compression.type" not in conf


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("acks", "1", "all"),
        ("request.required.acks", "0", "all"),
        ("enable.idempotence", "false", "true"),
        ("partitioner", "consistent", "murmur2_random"),
        ("enable.auto.commit", "true", "false"),
        ("auto.commit.enable", "true", "false"),
        ("enable.auto.offset.store", "true", "false"),
        ("auto.offset.reset", "latest", "earliest"),
        ("isolation.level", "read_uncommitted", "read_committed"),
        ("transactional.id", "t", "no value"),
        ("queuing.strategy", "lifo", "fifo"),
        ("delivery.report.only.error", "true", "false"),
        ("group.id", "other", "no value"),
        ("bootstrap.servers", "other:1", "no value"),
        ("metadata.broker.list", "other:1", "no value"),
        ("error_cb", "print", "plain values"),
        ("message.timeout.ms", "0", "1 or more"),
        ("delivery.timeout.ms", "soon", "1 or more"),
    ],
)
def test_a_key_that_would_break_a_promise_is_refused_by_every_client(
    key: str, value: str, allowed: str
) -> None:
    def make(extra: Mapping[str, str]) -> list[object]:
        return [
            lambda: producer_config("b:1", extra=extra),
            lambda: consumer_config("b:1", group="g", extra=extra),
            lambda: admin_config("b:1", extra=extra),
        ]

    for build in make({key: value}):
        with pytest.raises(ConfigError) as refused:
            build()  # type: ignore[operator]
        assert f"{key} is {value!r}" in str(refused.value)
        assert allowed in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"), [("acks", "-1"), ("enable.idempotence", "True"), ("auto.offset.reset", "earliest")]
)
def test_saying_what_holds_anyway_is_harmless(key: str, value: str) -> None:
    assert producer_config("b:1", extra={key: value}) == producer_config("b:1")
    assert consumer_config("b:1", group="g", extra={key: value}) == consumer_config("b:1", group="g")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"bogus.key": "1"}, ["bogus.key is '1'", "No such configuration property"]),
        ({"linger.ms": "abc"}, ["linger.ms is 'abc'", "Invalid value"]),
        ({"queue.buffering.max.messages": "-1"}, ["queue.buffering.max.messages is '-1'", "0..2147483647"]),
        ({"compression.type": "foo"}, ["compression.type is 'foo'"]),
        ({"linger.ms": "9", "message.timeout.ms": "5"}, ["linger.ms is '9'", "message.timeout.ms is '5'"]),
    ],
)
def test_what_librdkafka_refuses_is_named_with_its_value(extra: Mapping[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        construct(Producer, producer_config(NOWHERE, extra=extra), ClientLog())
    for word in words:
        assert word in str(refused.value)


def test_a_classic_key_beside_the_new_group_protocol_is_named() -> None:
    extra = {"group.protocol": "consumer", "session.timeout.ms": "6000"}
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms is '6000'"):
        construct(Consumer, consumer_config(NOWHERE, group="g", extra=extra), ClientLog())


def test_secrets_never_appear_in_an_error() -> None:
    secrets = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hush-1",
        "ssl.key.pem": "hush-2",
        "ssl.key.password": "hush-3",
    }
    with pytest.raises(ConfigError) as refused:
        construct(Producer, producer_config(NOWHERE, extra=secrets), ClientLog())
    assert "hush" not in str(refused.value)


def test_no_brokers_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: host:port"):
        producer_config(" ")


def test_a_client_that_repeats_itself_is_quoted_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog(interval=60)
    for _ in range(50):
        log.log(40, "%s [%s] %s", "FAIL", "thread", "broker-1/1: connection refused")
        log.log(40, "%s [%s] %s", "FAIL", "thread", "broker-2/2: connection refused")
    assert len(caplog.records) == 2
    eager = ClientLog(interval=0)
    eager.log(40, "%s [%s] %s", "FAIL", "thread", "broker-1/1: connection refused")
    eager.log(40, "%s [%s] %s", "FAIL", "thread", "broker-1/1: connection refused")
    assert len(caplog.records) == 4


def test_why_a_client_is_refused_is_part_of_what_its_calls_say() -> None:
    told: list[KafkaError] = []
    on_error = noting_refusals("refusing:9092", told.append)
    refused = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")
    timed_out = KafkaError(KafkaError._MSG_TIMED_OUT)
    for error in (KafkaError(KafkaError._TRANSPORT, "down"), refused):
        on_error(error)
    assert len(told) == 2
    said = str(unavailable("refusing:9092", 5, KafkaError(KafkaError._TRANSPORT)))
    assert said == "no answer from Kafka at refusing:9092 within 5 s: SASL authentication error"
    late = delivery_error(timed_out, "jobs", bootstrap="refusing:9092")
    assert str(late).endswith("is unknown: SASL authentication error")
    assert "SASL" not in str(unavailable("other:9092", 5, KafkaError(KafkaError._TRANSPORT)))
