"""Jobs that their topic deletes, or has deleted: refused before, noticed after, never passed over in silence."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.metrics import NoMetrics
from pipeline.core.offsets import Gap, OffsetTracker, Partition
from pipeline.core.plan import TopicState
from pipeline.core.retention import Kept, losses, too_short, worth_a_warning
from pipeline.errors import BrokerUnavailable, TopicsError
from pipeline.runtime.retention import RetentionWatch

MAIN, RETRY = "jobs.default.normal", "jobs.default.retry.1h"
DAY = 86_400.0


def topic(name: str = RETRY, **config: str) -> TopicState:
    defaults = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}
    given = {key.replace("_", "."): value for key, value in config.items()}
    return TopicState(name, 3, 1, {**defaults, **given})


@pytest.mark.parametrize(
    ("retention_ms", "refused"),
    [("-1", False), ("90000000", False), ("89999999", True), ("1000", True), ("", False), ("odd", False)],
)
def test_a_retry_topic_must_keep_records_for_its_delay_and_an_outage(
    retention_ms: str, *, refused: bool
) -> None:
    said = too_short(topic(retention_ms=retention_ms), wait=3600, outage=DAY)
    assert bool(said) == refused
    if refused:
        assert f"keeps records for {int(retention_ms) / 1000:g} s" in said
        assert "allowed: retention.ms of at least 90000000, or -1" in said


def test_what_a_main_topic_keeps_is_the_users_choice() -> None:
    assert too_short(topic(MAIN, retention_ms="1000"), wait=None, outage=DAY) == ""


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_topic_that_drops_all_but_the_last_job_of_a_tenant_is_refused(policy: str) -> None:
    for wait in (None, 10.0):
        assert f"has cleanup.policy {policy}" in too_short(topic(cleanup_policy=policy), wait=wait, outage=0)


def test_a_limit_in_bytes_is_worth_a_warning() -> None:
    assert worth_a_warning(topic()) == ""
    assert "retention.bytes 1000000" in worth_a_warning(topic(retention_bytes="1000000"))


@given(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(0, 250))
def test_exactly_the_records_between_the_committed_offset_and_the_first_one_left_are_lost(
    start: int, size: int, committed: int | None
) -> None:
    found = list(losses({Partition(RETRY, 1): Kept(start, start + size, committed)}))
    gone = max(0, start - committed) if committed is not None else 0
    assert sum(loss.records for loss in found) == gone
    is_odd = committed is None and start > 0
    is_beyond = committed is not None and committed > start + size
    assert len(found) == (1 if gone or is_odd or is_beyond else 0)


class Logs:
    """A cluster with these topics and positions."""

    def __init__(self, *topics: TopicState, kept: dict[Partition, Kept] | None = None) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.positions = kept or {}
        self.committed: dict[Partition, int] = {}
        self.away = False

    def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        return {name: self.topics[name] for name in topics if name in self.topics}

    def kept(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, Kept]:
        assert group == "workers"
        if self.away:
            raise BrokerUnavailable("no answer")
        return {partition: self.positions[partition] for partition in partitions}


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[Partition]]] = []

    def on_assigned(self, partitions: Sequence[Partition]) -> None:
        self.told.append(("assigned", list(partitions)))

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        self.told.append(("revoked", list(partitions)))

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        self.told.append(("lost", list(partitions)))


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.gone: dict[str, int] = {}

    def expired(self, queue: str, kind: str, n: int) -> None:  # type: ignore[override]  # NoMetrics takes anything
        assert queue == "default"
        self.gone[kind] = self.gone.get(kind, 0) + n


def watch(
    logs: Logs,
    listener: Listener | None = None,
    metrics: Counted | None = None,
    gaps: Sequence[Gap] = (),
) -> RetentionWatch:
    return RetentionWatch(
        listener or Listener(),
        logs=logs,
        group="workers",
        queue="default",
        waits={MAIN: None, RETRY: 3600.0},
        outage=DAY,
        begin=logs.committed.update,
        gaps=lambda: gaps,
        metrics=metrics or Counted(),
    )


def test_a_worker_is_refused_with_everything_that_is_wrong() -> None:
    logs = Logs(topic(MAIN, cleanup_policy="compact"), topic(RETRY, retention_ms="3600000"))
    with pytest.raises(
        TopicsError,
        match=r"jobs.default.normal has cleanup.policy compact.*retry.1h keeps records for 3600 s",
    ):
        watch(logs).check()


def test_topics_that_are_missing_are_for_others_to_complain_of() -> None:
    watch(Logs(topic(MAIN))).check()


def test_expired_records_are_counted_and_told_before_the_listener_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    main, retry = Partition(MAIN, 0), Partition(RETRY, 2)
    logs = Logs(kept={main: Kept(10, 20, 7), retry: Kept(50, 50, 10)})
    listener, metrics = Listener(), Counted()
    with caplog.at_level(logging.INFO, logger="pipeline.retention"):
        watch(logs, listener, metrics).on_assigned([main, retry])
    assert metrics.gone == {"main": 3, "retry": 40}
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "CRITICAL"]
    assert "40 records of jobs.default.retry.1h/2 were deleted" in caplog.text
    assert listener.told == [("assigned", [main, retry])]


def test_a_group_without_a_place_is_given_one_at_the_first_record_that_there_is() -> None:
    partitions = [Partition(RETRY, number) for number in range(3)]
    kept = dict(zip(partitions, [Kept(0, 9, None), Kept(5, 9, None), Kept(0, 9, 4)], strict=True))
    logs, metrics = Logs(kept=kept), Counted()
    watch(logs, metrics=metrics).on_assigned(partitions)
    assert logs.committed == {partitions[0]: 0, partitions[1]: 5}
    assert metrics.gone == {}  # nobody can tell whether the group had a place before


def test_when_the_cluster_does_not_answer_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    logs, listener = Logs(), Listener()
    logs.away = True
    partitions = [Partition(MAIN, 0)]
    guarded = watch(logs, listener)
    guarded.on_assigned(partitions)
    guarded.on_revoked(partitions)
    guarded.on_lost(partitions)
    assert [event for event, _ in listener.told] == ["assigned", "revoked", "lost"]
    assert "is not known: no answer" in caplog.text


def test_the_place_that_a_group_is_given_is_committed_until_work_is_done_there() -> None:
    partition = Partition(RETRY, 0)
    tracker = OffsetTracker()
    tracker.begin(partition, 5)
    assert tracker.take_commits() == {}  # not assigned
    tracker.assign([partition])
    tracker.begin(partition, 5)
    assert tracker.take_commits() == {partition: 5}
    tracker.commit_failed([partition])
    assert tracker.take_commits() == {partition: 5}
    epoch = tracker.received(partition, 5)
    tracker.done(partition, 5, epoch)
    tracker.begin(partition, 5)
    assert tracker.take_commits() == {partition: 6}


def test_a_gap_is_noted_between_records_that_came_one_after_the_other() -> None:
    partition = Partition(MAIN, 0)
    tracker = OffsetTracker()
    tracker.assign([partition])
    for offset in (3, 4, 9, 10, 4, 7):
        epoch = tracker.received(partition, offset)
    assert tracker.take_gaps() == [Gap(partition, 5, 9)]
    for offset in (3, 4, 7, 9, 10):
        tracker.done(partition, offset, epoch)
    tracker.received(partition, 20)
    assert tracker.take_gaps() == [Gap(partition, 11, 20)]
    assert tracker.take_gaps() == []


def test_of_gaps_in_what_was_read_only_those_below_the_start_of_their_partition_are_losses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    main, retry = Partition(MAIN, 0), Partition(RETRY, 2)
    logs = Logs(kept={main: Kept(100, 200, 90), retry: Kept(50, 80, 40)})
    gaps = [Gap(main, 40, 110), Gap(main, 150, 151), Gap(retry, 40, 45), Gap(retry, 60, 70)]
    metrics = Counted()
    watching = watch(logs, metrics=metrics, gaps=gaps)
    logs.away = True
    watching.look_back()
    assert metrics.gone == {}
    logs.away = False
    gaps.clear()
    watching.look_back()
    assert metrics.gone == {"main": 60, "retry": 5}
    assert (
        "60 records of jobs.default.normal/0 were deleted by its retention before they were read"
        in caplog.text
    )
    assert "(offsets 40 to 99)" in caplog.text
    watching.look_back()
    assert metrics.gone == {"main": 60, "retry": 5}
