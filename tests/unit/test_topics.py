"""Names of topics, and what each is declared to look like."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.topics import (
    ERROR_HEADROOM_BYTES,
    PRIORITIES,
    TopicNames,
    TopicSettings,
    check_name,
    declare,
    tier_name,
)
from pipeline.errors import ConfigError

NAMES = TopicNames("jobs")
QUEUES = st.from_regex(re.compile(r"[a-z0-9][a-z0-9_-]{0,62}"), fullmatch=True)
TIERS = st.integers(1, 90 * 86_400_000).map(lambda millis: millis / 1000)


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (0.5, "500ms"),
        (1, "1s"),
        (10, "10s"),
        (60, "1m"),
        (90, "90s"),
        (600, "10m"),
        (3600, "1h"),
        (86_400, "24h"),
    ],
)
def test_a_tier_is_named_by_its_largest_whole_unit(seconds: float, name: str) -> None:
    assert tier_name(seconds) == name


@given(st.lists(TIERS, unique=True, max_size=5))
def test_different_tiers_have_different_names(tiers: list[float]) -> None:
    assert len({tier_name(tier) for tier in tiers}) == len(tiers)


@given(queue=QUEUES, tier=TIERS)
def test_every_topic_of_a_queue_leads_back_to_it(queue: str, tier: float) -> None:
    own = [NAMES.main(queue, priority) for priority in PRIORITIES] + [
        NAMES.retry(queue, tier),
        NAMES.dlq(queue),
    ]
    assert {NAMES.queue_of(topic) for topic in own} == {queue}
    assert len(set(own)) == len(own)
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) for topic in own), "what Kafka allows"


@pytest.mark.parametrize(
    "topic",
    [
        "jobs.events",
        "jobs.schemas",
        "jobs.default",
        "jobs.default.other",
        "jobs.default.retry",
        "jobs.default.dlq.x",
        "jobs.default.retry.10s.x",
        "jobsx.default.normal",
        "other.default.normal",
        "default.normal",
        "",
    ],
)
def test_any_other_topic_belongs_to_no_queue(topic: str) -> None:
    assert NAMES.queue_of(topic) is None


@pytest.mark.parametrize("name", ["", "a.b", "A", "-a", "_a", "a b", "ä", "a" * 64, "a\n"])
def test_a_name_that_would_make_topics_ambiguous_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"queue is .*; allowed: a-z, 0-9, '_' and '-', at most 63"):
        check_name("queue", name)
    with pytest.raises(ConfigError, match="namespace is"):
        TopicNames(name)
    with pytest.raises(ConfigError, match="queue is"):
        declare(NAMES, queues=[name], tiers=[10], settings=TopicSettings())


def test_a_declaration_has_every_topic_of_every_queue_once() -> None:
    specs = declare(NAMES, queues=["default", "gpu"], tiers=[10, 60], settings=TopicSettings())
    assert [spec.name for spec in specs] == [
        "jobs.default.normal",
        "jobs.default.retry.10s",
        "jobs.default.retry.1m",
        "jobs.default.dlq",
        "jobs.gpu.normal",
        "jobs.gpu.retry.10s",
        "jobs.gpu.retry.1m",
        "jobs.gpu.dlq",
        "jobs.events",
        "jobs.schemas",
    ]


def test_settings_reach_the_topics_that_they_are_for() -> None:
    settings = TopicSettings(
        partitions=3,
        events_partitions=2,
        replication=3,
        min_insync_replicas=2,
        max_message_bytes=1000,
        main_retention_ms=1,
        retry_retention_ms=2,
        dlq_retention_ms=3,
        events_retention_ms=4,
    )
    specs = {spec.name: spec for spec in declare(NAMES, queues=["q"], tiers=[1], settings=settings)}
    assert {name: spec.partitions for name, spec in specs.items()} == {
        "jobs.q.normal": 3,
        "jobs.q.retry.1s": 3,
        "jobs.q.dlq": 3,
        "jobs.events": 2,
        "jobs.schemas": 1,
    }
    assert {name: spec.config["retention.ms"] for name, spec in specs.items()} == {
        "jobs.q.normal": "1",
        "jobs.q.retry.1s": "2",
        "jobs.q.dlq": "3",
        "jobs.events": "4",
        "jobs.schemas": "-1",
    }
    assert {spec.replication for spec in specs.values()} == {3}
    assert {spec.config["min.insync.replicas"] for spec in specs.values()} == {"2"}
    assert specs["jobs.schemas"].config["cleanup.policy"] == "compact"


def test_the_way_onward_takes_a_job_of_the_largest_size_with_its_errors() -> None:
    specs = {
        spec.name: spec
        for spec in declare(NAMES, queues=["q"], tiers=[1], settings=TopicSettings(max_message_bytes=1000))
    }
    for name in (
        "jobs.q.retry.1s",
        "jobs.q.dlq",
        "jobs.q.normal",
    ):  # a replay carries the application's headers
        assert specs[name].config["max.message.bytes"] == str(1000 + ERROR_HEADROOM_BYTES)
    assert specs["jobs.events"].config["max.message.bytes"] == "1000"
