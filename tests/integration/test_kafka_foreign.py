"""Records that no client of ours would write, on a real Kafka: they come through, and harm nothing beside them."""

from __future__ import annotations

import ctypes
import uuid
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.records import UNREADABLE_HEADERS
from pipeline.core.headers import parse_job
from pipeline.core.topics import TopicSpec
from tests.contract.brokers import Member, outgoing, until
from tests.servers import TestServers

pytestmark = pytest.mark.servers

# Tags of the arguments of rd_kafka_producev.
END, TOPIC, VALUE, HEADER, COPY = 0, 1, 4, 9, 2


class Foreign:
    """A producer of librdkafka's C interface, which takes header names of any bytes."""

    def __init__(self, bootstrap: str) -> None:
        package = Path(confluent_kafka.__file__).parent
        places = [
            *package.parent.glob("confluent_kafka.libs/librdkafka*"),
            *package.glob(".dylibs/librdkafka*"),
        ]
        self._library = ctypes.CDLL(str(places[0]))
        self._library.rd_kafka_conf_new.restype = ctypes.c_void_p
        self._library.rd_kafka_new.restype = ctypes.c_void_p
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        problem = ctypes.create_string_buffer(512)
        self._library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), problem, 512)
        self._producer = ctypes.c_void_p(self._library.rd_kafka_new(0, conf, problem, 512))

    def write(self, topic: str, value: bytes, header: bytes) -> None:
        text, size = ctypes.c_char_p, ctypes.c_size_t
        failed = self._library.rd_kafka_producev(
            self._producer,
            *(TOPIC, text(topic.encode())),
            *(VALUE, text(value), size(len(value))),
            *(7, COPY),
            *(HEADER, text(header), text(b"1"), size(1)),
            END,
        )
        assert failed == 0
        assert self._library.rd_kafka_flush(self._producer, 20_000) == 0

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._producer)


def test_a_header_name_that_is_no_utf8_makes_a_record_that_is_no_job(servers: TestServers) -> None:
    topic = f"t{uuid.uuid4().hex[:12]}"
    admin = KafkaAdmin(admin_config(servers.bootstrap_servers))
    admin.create([TopicSpec(topic, 1, 1)])
    member = Member(KafkaJobConsumer(consumer_config(servers.bootstrap_servers, group=topic)))
    sender = KafkaJobProducer(producer_config(servers.bootstrap_servers))
    many = [b"%d" % number for number in range(100)]  # so many that the interpreter specialises its calls
    with closing(Foreign(servers.bootstrap_servers)) as foreign, closing(member.consumer), closing(sender):
        sender.send_all([outgoing(topic, value) for value in many])
        foreign.write(topic, b"broken", b"ba\xff\xfed")
        foreign.write(topic, b"readable", "bäd".encode())
        sender.send_all([outgoing(topic, b"ours")])
        member.consumer.subscribe([topic], member)
        until(lambda: len(member.records) == 103, member)
    admin.delete([topic])
    assert member.values() == [*many, b"broken", b"readable", b"ours"]
    broken, readable = member.records[100:102]
    assert broken.headers == [(UNREADABLE_HEADERS, b"")]
    assert readable.headers == [("bäd", b"1")]
    assert "ce_id is missing" in parse_job(broken, queue="default").problem
