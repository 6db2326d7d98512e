"""What must be done to a cluster so that its topics are as declared, and what is refused because it could do harm.

Refused always: fewer partitions (Kafka cannot), another number of replicas (a reassignment, which needs a plan of its
own). Refused unless allowed by name:
- `retention`: keeping records for a shorter time, or by another policy, deletes jobs that nobody has run yet;
- `partitions`: more partitions send keys elsewhere, so a tenant's new jobs can overtake its waiting ones. An empty
  topic has nothing to overtake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pipeline.core.topics import TopicSpec

__all__ = ["ALLOWANCES", "Change", "ChangeKind", "TopicState", "plan"]

ALLOWANCES = ("partitions", "retention")
_FOR_EVER = -1


@dataclass(frozen=True)
class TopicState:
    """A topic as the cluster has it. `config` holds every key, also those with default values."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)
    is_empty: bool = False


class ChangeKind(StrEnum):
    """What is done to a topic."""

    CREATE = "create"
    ADD_PARTITIONS = "add partitions"
    SET_CONFIG = "set config"
    REFUSE = "refuse"


class Change(NamedTuple):
    """One step. `sentence` says it to people; `config` is for `SET_CONFIG` only."""

    kind: ChangeKind
    spec: TopicSpec
    sentence: str
    config: Mapping[str, str] = {}

    @property
    def topic(self) -> str:
        return self.spec.name


def plan(
    declared: Iterable[TopicSpec],
    actual: Mapping[str, TopicState],
    *,
    brokers: int,
    allow: Collection[str] = (),
) -> list[Change]:
    """The steps from `actual` to `declared`, in the order of the declaration; empty when there is no difference."""
    changes: list[Change] = []
    for spec in declared:
        state = actual.get(spec.name)
        if state is None:
            changes.append(_create(spec, brokers))
        else:
            changes += _partitions(spec, state, allow)
            changes += _replication(spec, state)
            changes += _config(spec, state, allow)
    return changes


def _create(spec: TopicSpec, brokers: int) -> Change:
    if spec.replication > brokers:
        return _refuse(
            spec,
            f"it is declared with {spec.replication} replicas, and the cluster has {_count(brokers, 'broker')}",
        )
    size = f"{_count(spec.partitions, 'partition')}, {_count(spec.replication, 'replica')}"
    settings = ", ".join(f"{key} {_shown(key, value)}" for key, value in sorted(spec.config.items()))
    return Change(ChangeKind.CREATE, spec, f"{spec.name}: create with {size}, {settings}")


def _partitions(spec: TopicSpec, state: TopicState, allow: Collection[str]) -> Iterator[Change]:
    if spec.partitions < state.partitions:
        yield _refuse(
            spec,
            f"it has {state.partitions} partitions and is declared with {spec.partitions}; Kafka cannot shrink a topic",
        )
    elif spec.partitions > state.partitions:
        step = f"{state.partitions} -> {spec.partitions} partitions"
        if state.is_empty or "partitions" in allow:
            yield Change(ChangeKind.ADD_PARTITIONS, spec, f"{spec.name}: {step}")
        else:
            yield _refuse(
                spec,
                f"{step} would let new jobs of a key overtake its waiting ones; --allow partitions does it",
            )


def _replication(spec: TopicSpec, state: TopicState) -> Iterator[Change]:
    if spec.replication != state.replication:
        yield _refuse(
            spec,
            f"it has {_count(state.replication, 'replica')} and is declared with {spec.replication}; "
            "move replicas with kafka-reassign-partitions",
        )


def _config(spec: TopicSpec, state: TopicState, allow: Collection[str]) -> Iterator[Change]:
    safe: dict[str, str] = {}
    for key, value in sorted(spec.config.items()):
        present = state.config.get(key, "")
        if value == present:
            continue
        if _may_delete(key, present, value) and "retention" not in allow:
            yield _refuse(
                spec,
                f"{_step(key, present, value)} could delete jobs that have not run; --allow retention does it",
            )
        else:
            safe[key] = value
    if safe:
        steps = ", ".join(_step(key, state.config.get(key, ""), value) for key, value in safe.items())
        yield Change(ChangeKind.SET_CONFIG, spec, f"{spec.name}: {steps}", safe)


def _may_delete(key: str, present: str, value: str) -> bool:
    if key == "cleanup.policy":
        return True
    if key not in ("retention.ms", "retention.bytes"):
        return False
    before, after = _limit(present), _limit(value)
    return after != _FOR_EVER and (before == _FOR_EVER or after < before)


def _limit(text: str) -> int:
    try:
        return max(_FOR_EVER, int(text))
    except ValueError:
        return _FOR_EVER  # unknown: taken for the longest, so that shortening is noticed


def _step(key: str, present: str, value: str) -> str:
    return f"{key} {_shown(key, present)} -> {_shown(key, value)}"


def _shown(key: str, value: str) -> str:
    if not value:
        return "unset"
    if key != "retention.ms":
        return value
    millis = _limit(value)
    if millis == _FOR_EVER:
        return f"{value} (for ever)"
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if millis and millis % size == 0:
            return f"{value} ({_count(millis // size, unit)})"
    return value


def _refuse(spec: TopicSpec, reason: str) -> Change:
    return Change(ChangeKind.REFUSE, spec, f"{spec.name}: refused: {reason}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
