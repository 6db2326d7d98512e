"""`pipeline dlq stats`: how many dead letters there are, by whatever they have in common."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from math import isfinite

import click

from pipeline.cli.common import Session, pass_session
from pipeline.cli.dlq_options import Chosen, choosing
from pipeline.cli.dlq_progress import meter
from pipeline.cli.dlq_rows import STATES, letters_text, states_of
from pipeline.cli.text import clip, duration, iso, printable, table, when
from pipeline.core.desk import Group
from pipeline.core.letter_facts import UNRESOLVED, LetterState
from pipeline.core.selection import Selection
from pipeline.desk import GROUPS, OpenDesk, open_desk

__all__ = ["stats"]

DAY = 86_400.0


@click.command()
@choosing
@click.option(
    "--by",
    "names",
    type=click.Choice(list(GROUPS)),
    multiple=True,
    default=("type", "error"),
    show_default=True,
    help="Group by this.",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Letters in this state; by default those that wait.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The largest so many groups."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON; times in ISO 8601.")
@pass_session
def stats(
    session: Session,
    *,
    chosen: Chosen,
    names: tuple[str, ...],
    states: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Count dead letters in groups, and warn of those that the topic will delete soon."""
    with open_desk(session.app(None)) as opened:
        selection = chosen.selection(opened)
        with meter("index") as told:
            opened.desk.catch_up(chosen.queue, on_read=told.tell)
        every = opened.desk.scope(selection, queue=chosen.queue)
        by_state = opened.index.groups(every, ["state"], limit=len(LetterState))
        groups = opened.index.groups(every._replace(states=states_of(states)), names, limit=limit)
        warnings = list(_warnings(opened, chosen.queue))
    if as_json:
        told_states = {group.values[0]: group.letters for group in by_state}
        found = [_group_json(group, names) for group in groups]
        click.echo(json.dumps({"states": told_states, "groups": found, "warnings": warnings}, indent=2))
        return
    for line in _lines(by_state, groups, names):
        click.echo(line)
    for line in warnings:
        click.echo(line, err=True)


def _lines(by_state: Sequence[Group], groups: Sequence[Group], names: Sequence[str]) -> Iterator[str]:
    if not by_state:
        yield "no dead letters"
        return
    yield ", ".join(f"{group.values[0]} {group.letters}" for group in by_state)
    if groups:
        head = [*(name.upper() for name in names), "LETTERS", "OLDEST", "NEWEST"]
        yield ""
        yield from table(head, [_row(group) for group in groups])


def _row(group: Group) -> list[object]:
    shown = [clip(value, 60) or "-" for value in group.values]
    return [*shown, group.letters, when(group.oldest), when(group.newest)]


def _group_json(group: Group, names: Sequence[str]) -> dict[str, object]:
    return {
        **dict(zip(names, group.values, strict=True)),
        "letters": group.letters,
        "oldest": iso(group.oldest),
        "newest": iso(group.newest),
    }


def _warnings(opened: OpenDesk, queue: str | None) -> Iterator[str]:
    """Letters that wait, while their topic has deleted their record, or will soon."""
    for name in opened.desk.queues(queue):
        scope = opened.desk.scope(Selection(), queue=name, states=[LetterState.EXPIRED])
        if gone := opened.index.count(scope):
            yield f"{printable(name)}: {letters_text(gone)} left the topic before anybody dealt with them"
        kept = opened.retention(name)
        if not isfinite(kept):
            continue
        oldest_safe = time.time() - max(kept - DAY, kept / 2)
        waiting = sorted(UNRESOLVED - {LetterState.EXPIRED})
        scope = opened.desk.scope(Selection(until=oldest_safe), queue=name, states=waiting)
        if soon := opened.index.count(scope):
            yield (
                f"{printable(name)}: {letters_text(soon)} will be deleted by the topic soon, which keeps records for "
                f"{duration(kept)}: deal with them, or raise topics.dlq_retention and run `pipeline topics apply`"
            )
