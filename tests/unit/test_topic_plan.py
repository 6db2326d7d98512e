"""The plan for topics: what is done, and what is refused unless it is allowed by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.plan import ALLOWANCES, ChangeKind, TopicState, plan
from pipeline.core.topics import TopicNames, TopicSettings, TopicSpec, declare

DAY = 86_400_000
SPEC = TopicSpec("jobs.default.normal", 12, 1, {"retention.ms": str(7 * DAY), "cleanup.policy": "delete"})


def as_declared(spec: TopicSpec) -> TopicState:
    return TopicState(spec.name, spec.partitions, spec.replication, {**spec.config, "other.key": "1"})


STATE = as_declared(SPEC)


def only(spec: TopicSpec, state: TopicState | None, *, allow: tuple[str, ...] = ()) -> tuple[ChangeKind, str]:
    (change,) = plan([spec], {state.name: state} if state else {}, brokers=1, allow=allow)
    return change.kind, change.sentence


def with_config(**config: str) -> TopicState:
    named = {key.replace("_", "."): value for key, value in config.items()}
    return replace(STATE, config={**STATE.config, **named})


def test_a_topic_that_is_as_declared_needs_nothing() -> None:
    assert plan([SPEC], {SPEC.name: STATE}, brokers=1) == []


def test_a_missing_topic_is_created() -> None:
    kind, sentence = only(SPEC, None)
    assert kind is ChangeKind.CREATE
    assert sentence == (
        "jobs.default.normal: create with 12 partitions, 1 replica, "
        "cleanup.policy delete, retention.ms 604800000 (7 days)"
    )


def test_more_replicas_than_brokers_are_refused_before_kafka_is_asked() -> None:
    kind, sentence = only(replace(SPEC, replication=3), None)
    assert kind is ChangeKind.REFUSE
    assert "3 replicas, and the cluster has 1 broker" in sentence


def test_shrinking_is_refused_whatever_is_allowed() -> None:
    kind, sentence = only(replace(SPEC, partitions=6), STATE, allow=ALLOWANCES)
    assert kind is ChangeKind.REFUSE
    assert "has 12 partitions and is declared with 6" in sentence


def test_another_number_of_replicas_is_refused_whatever_is_allowed() -> None:
    kind, sentence = only(SPEC, replace(STATE, replication=3), allow=ALLOWANCES)
    assert kind is ChangeKind.REFUSE
    assert "3 replicas and is declared with 1" in sentence


def test_more_partitions_are_refused_while_keys_are_live() -> None:
    kind, sentence = only(replace(SPEC, partitions=24), STATE)
    assert kind is ChangeKind.REFUSE
    assert "12 -> 24 partitions" in sentence
    assert "--allow partitions" in sentence


@pytest.mark.parametrize("allow", [("partitions",), ()])
def test_more_partitions_are_added_when_allowed_or_when_nothing_can_be_overtaken(
    allow: tuple[str, ...],
) -> None:
    state = replace(STATE, is_empty=not allow)
    assert only(replace(SPEC, partitions=24), state, allow=allow) == (
        ChangeKind.ADD_PARTITIONS,
        "jobs.default.normal: 12 -> 24 partitions",
    )


@pytest.mark.parametrize("present", [str(8 * DAY), "-1", "no number"])
def test_a_shorter_retention_is_refused_unless_allowed(present: str) -> None:
    state = with_config(retention_ms=present)
    kind, sentence = only(SPEC, state)
    assert kind is ChangeKind.REFUSE
    assert "--allow retention" in sentence
    assert only(SPEC, state, allow=("retention",))[0] is ChangeKind.SET_CONFIG


@pytest.mark.parametrize("declared", ["-1", str(8 * DAY)])
def test_a_longer_retention_is_set(declared: str) -> None:
    spec = replace(SPEC, config={**SPEC.config, "retention.ms": declared})
    assert only(spec, STATE)[0] is ChangeKind.SET_CONFIG


def test_another_cleanup_policy_could_delete_and_is_refused() -> None:
    assert only(SPEC, with_config(cleanup_policy="compact"))[0] is ChangeKind.REFUSE


def test_what_is_safe_is_set_although_something_else_is_refused() -> None:
    spec = replace(
        SPEC, partitions=6, config={**SPEC.config, "min.insync.replicas": "2", "max.message.bytes": "9"}
    )
    refused, set_config = plan([spec], {SPEC.name: STATE}, brokers=1)
    assert refused.kind is ChangeKind.REFUSE
    assert set_config.kind is ChangeKind.SET_CONFIG
    assert set_config.config == {"min.insync.replicas": "2", "max.message.bytes": "9"}
    assert set_config.sentence == (
        "jobs.default.normal: max.message.bytes unset -> 9, min.insync.replicas unset -> 2"
    )


def test_topics_that_are_not_declared_are_left_alone() -> None:
    assert plan([SPEC], {SPEC.name: STATE, "foreign": replace(STATE, name="foreign")}, brokers=1) == []


def test_the_whole_declaration_is_created_in_its_order_and_then_needs_nothing() -> None:
    specs = declare(TopicNames(), queues=["default", "gpu"], tiers=[10, 60], settings=TopicSettings())
    changes = plan(specs, {}, brokers=1)
    assert [change.topic for change in changes] == [spec.name for spec in specs]
    assert {change.kind for change in changes} == {ChangeKind.CREATE}
    assert plan(specs, {spec.name: as_declared(spec) for spec in specs}, brokers=1) == []


sizes = st.integers(1, 30)
retentions = st.sampled_from(["-1", "1", "1000", str(DAY), str(7 * DAY)])


@given(declared=st.tuples(sizes, retentions), actual=st.tuples(sizes, retentions), empty=st.booleans())
def test_nothing_that_loses_or_reorders_jobs_is_planned_without_a_word(
    declared: tuple[int, str], actual: tuple[int, str], *, empty: bool
) -> None:
    spec = TopicSpec("t", declared[0], 1, {"retention.ms": declared[1]})
    state = TopicState("t", actual[0], 1, {"retention.ms": actual[1]}, is_empty=empty)
    for change in plan([spec], {"t": state}, brokers=1):
        if change.kind is ChangeKind.ADD_PARTITIONS:
            assert empty
            assert declared[0] > actual[0]
        if change.kind is ChangeKind.SET_CONFIG:
            assert declared[1] == "-1" or (actual[1] != "-1" and int(declared[1]) > int(actual[1]))
