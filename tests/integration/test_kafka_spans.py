"""Runs of offsets are read as they lie in the topic, and nothing else is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, consumer_config, producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.adapters.kafka.spans import KafkaSpans
from pipeline.core.desk import Span
from pipeline.core.ports import Outgoing
from pipeline.core.topics import TopicSpec
from pipeline.errors import TopicsMissing
from tests.servers import TestServers

pytestmark = pytest.mark.servers

COUNT = 30_000


@pytest.fixture(scope="module")
def topic(servers: TestServers) -> Iterator[str]:
    """Three partitions with 10,000 records each, more or less."""
    name = "spans-of-a-topic"
    admin = KafkaAdmin(admin_config(servers.bootstrap_servers))
    admin.create([TopicSpec(name, 3, 1)])
    producer = KafkaJobProducer(producer_config(servers.bootstrap_servers))
    records = [Outgoing(name, b"key-%d" % n, b"%d" % n, []) for n in range(COUNT)]
    assert all(end.error is None for end in producer.send_all(records))
    producer.close()
    yield name
    admin.delete([name])


def source(servers: TestServers) -> KafkaSpans:
    admin = KafkaAdmin(admin_config(servers.bootstrap_servers))
    return KafkaSpans(consumer_config(servers.bootstrap_servers, group="spans"), admin)


def read(servers: TestServers, topic: str, spans: list[Span]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for record in source(servers).read(topic, spans):
        found[record.partition].append(record.offset)
    return found


def test_whole_partitions_are_read_in_order(servers: TestServers, topic: str) -> None:
    whole = source(servers).bounds(topic)
    assert [span.start for span in whole] == [0, 0, 0]
    found = read(servers, topic, whole)
    assert found == {span.partition: list(range(span.stop)) for span in whole}
    assert sum(map(len, found.values())) == COUNT


def test_spans_far_apart_and_close_together_are_read_once_each(servers: TestServers, topic: str) -> None:
    spans = [Span(0, 0, 1), Span(0, 3, 5), Span(0, 700, 701), Span(0, 6000, 6010), Span(2, 9000, 9001)]
    found = read(servers, topic, spans)
    assert found == {0: [0, 3, 4, 700, *range(6000, 6010)], 2: [9000]}


def test_many_short_spans_are_read_to_the_last(servers: TestServers, topic: str) -> None:
    spans = [Span(1, start, start + 2) for start in range(0, 9000, 90)]
    found = read(servers, topic, spans)
    assert found == {1: [offset for start in range(0, 9000, 90) for offset in (start, start + 1)]}


def test_what_lies_beyond_the_end_is_not_waited_for(servers: TestServers, topic: str) -> None:
    end = source(servers).bounds(topic)[0].stop
    assert read(servers, topic, [Span(0, end - 1, end + 5), Span(0, end + 9, end + 10)]) == {0: [end - 1]}


def test_no_spans_ask_nobody(servers: TestServers) -> None:
    assert read(servers, "no-such-topic", []) == {}
    with pytest.raises(TopicsMissing, match="no-such-topic"):
        read(servers, "no-such-topic", [Span(0, 0, 1)])
