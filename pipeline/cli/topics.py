"""`pipeline topics`: the declared topics against those of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import click

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.cli.common import Session, pass_session
from pipeline.core.plan import ALLOWANCES, Change, ChangeKind, TopicState, plan
from pipeline.core.topics import TopicSpec
from pipeline.errors import TopicsError

__all__ = ["command", "run_apply", "run_describe", "run_plan"]

Write = Callable[[str], None]

_MARKS = {
    ChangeKind.CREATE: "+",
    ChangeKind.ADD_PARTITIONS: "~",
    ChangeKind.SET_CONFIG: "~",
    ChangeKind.REFUSE: "!",
}
_COLUMNS = (
    "topic",
    "partitions",
    "replicas",
    "cleanup.policy",
    "retention.ms",
    "max.message.bytes",
    "records",
)


class Admin(Protocol):
    """What these commands need of a cluster."""

    def broker_count(self) -> int: ...

    def describe(self, topics: Sequence[str]) -> dict[str, TopicState]: ...

    def create(self, specs: Sequence[TopicSpec]) -> None: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def set_config(self, topic: str, config: Mapping[str, str]) -> None: ...


def run_plan(admin: Admin, specs: Sequence[TopicSpec], *, allow: Collection[str], write: Write) -> None:
    """Say what `run_apply` would do, and do nothing."""
    changes = _compare(admin, specs, allow)
    for change in changes:
        write(f"{_MARKS[change.kind]} {change.sentence}")
    write(_summary(specs, changes, "to do: `pipeline topics apply`"))


def run_apply(admin: Admin, specs: Sequence[TopicSpec], *, allow: Collection[str], write: Write) -> None:
    """Make the cluster as declared, but for what is refused. Applying twice changes nothing more.

    Raises `TopicsError` at the end when something was refused.
    """
    changes = _compare(admin, specs, allow)
    admin.create([change.spec for change in changes if change.kind is ChangeKind.CREATE])
    for change in changes:
        if change.kind is ChangeKind.ADD_PARTITIONS:
            admin.add_partitions(change.topic, change.spec.partitions)
        elif change.kind is ChangeKind.SET_CONFIG:
            admin.set_config(change.topic, change.config)
        write(f"{_MARKS[change.kind]} {change.sentence}")
    write(_summary(specs, changes, "done"))
    refused = [change for change in changes if change.kind is ChangeKind.REFUSE]
    if refused:
        raise TopicsError(f"{len(refused)} of {len(changes)} changes were refused, see above")


def run_describe(admin: Admin, specs: Sequence[TopicSpec], *, write: Write) -> None:
    """A table of the declared topics as the cluster has them."""
    states = admin.describe([spec.name for spec in specs])
    rows = [_COLUMNS, *(_row(spec, states.get(spec.name)) for spec in specs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _compare(admin: Admin, specs: Sequence[TopicSpec], allow: Collection[str]) -> list[Change]:
    actual = admin.describe([spec.name for spec in specs])
    return plan(specs, actual, brokers=admin.broker_count(), allow=allow)


def _summary(specs: Sequence[TopicSpec], changes: Sequence[Change], applicable: str) -> str:
    if not changes:
        return f"all {len(specs)} topics are as declared"
    refused = sum(change.kind is ChangeKind.REFUSE for change in changes)
    ending = f"; {refused} refused" if refused else ""
    return f"{len(changes) - refused} {applicable}{ending}"


def _row(spec: TopicSpec, state: TopicState | None) -> tuple[str, ...]:
    if state is None:
        return (spec.name, "missing", *("-" for _ in _COLUMNS[2:]))
    settings = (state.config.get(key, "-") for key in _COLUMNS[3:6])
    return (
        spec.name,
        str(state.partitions),
        str(state.replication),
        *settings,
        "no" if state.is_empty else "yes",
    )


_allow = click.option(
    "--allow",
    multiple=True,
    type=click.Choice(ALLOWANCES),
    help="Do this too: more partitions for a topic that holds records, or a shorter retention.",
)


@click.group()
def command() -> None:
    """Compare the topics with their declaration in the settings, and apply it."""


@command.command("plan")
@_allow
@pass_session
def _plan(session: Session, allow: tuple[str, ...]) -> None:
    """Show what apply would do."""
    run_plan(_admin(session), session.app(None).topics(), allow=allow, write=click.echo)


@command.command("apply")
@_allow
@pass_session
def _apply(session: Session, allow: tuple[str, ...]) -> None:
    """Create what is missing, change what differs. Exits with 1 when something was refused."""
    run_apply(_admin(session), session.app(None).topics(), allow=allow, write=click.echo)


@command.command("describe")
@pass_session
def _describe(session: Session) -> None:
    """Show the topics as the cluster has them."""
    run_describe(_admin(session), session.app(None).topics(), write=click.echo)


def _admin(session: Session) -> KafkaAdmin:
    return KafkaAdmin(session.app(None).admin_config(), timeout=session.settings.kafka.request_timeout)
