"""`pipeline dlq`: find dead letters, replay them, or set them aside."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from pipeline.cli.common import Session, app_option, pass_session
from pipeline.cli.dlq_audit import audit
from pipeline.cli.dlq_edit import edit
from pipeline.cli.dlq_export import export
from pipeline.cli.dlq_move import discard, park, reopen
from pipeline.cli.dlq_options import Chosen, choosing, queue_option, read_reference
from pipeline.cli.dlq_progress import meter
from pipeline.cli.dlq_replay import replay
from pipeline.cli.dlq_rows import STATES, count_line, letter_json, letter_table, states_of
from pipeline.cli.dlq_show import letter_lines
from pipeline.cli.dlq_stats import stats
from pipeline.cli.dlq_upkeep import purge, reindex
from pipeline.cli.text import one_line
from pipeline.core.desk import IndexedLetter, LetterKey
from pipeline.core.letters import facts_of
from pipeline.core.selection import Position
from pipeline.desk import OpenDesk, open_desk, open_letter
from pipeline.errors import DatabaseNotMigrated, StoreUnavailable

__all__ = ["command"]

T = TypeVar("T")

_KEY = re.compile(
    r"(?P<dead_at>\d{1,10}\.\d{3})/(?P<queue>[^/\s]{1,249})/(?P<partition>\d{1,9}):(?P<offset>\d{1,18})"
)


@click.group()
def command() -> None:
    """Look at dead letters, replay them, or set them aside."""


for each in (audit, discard, edit, export, park, purge, reindex, reopen, replay, stats):
    command.add_command(each)


# --- list


def _read_key(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> LetterKey | None:
    if text is None:
        return None
    found = _KEY.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text[:80]!r} is none; allowed: what the page before it said")
    return LetterKey(float(found["dead_at"]), found["queue"], int(found["partition"]), int(found["offset"]))


@command.command("list")
@choosing
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Letters in this state; by default those that wait.",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="KEY", callback=_read_key, help="The next page, as the one before it said.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array; times in ISO 8601.")
@pass_session
def list_letters(
    session: Session,
    *,
    chosen: Chosen,
    states: tuple[str, ...],
    limit: int,
    after: LetterKey | None,
    as_json: bool,
) -> None:
    """List dead letters, the newest first."""
    app = session.app(None)
    with open_desk(app) as opened:
        selection = chosen.selection(opened)

        def by_index() -> tuple[Sequence[IndexedLetter], int]:
            _catch_up(opened, chosen.queue)
            scope = opened.desk.scope(selection, queue=chosen.queue, states=states_of(states))
            return opened.index.page(scope, limit=limit, after=after), opened.index.count(scope)

        def by_topic() -> tuple[Sequence[IndexedLetter], int]:
            letters, total = opened.desk.scan_newest(selection, limit=limit, queue=chosen.queue)
            return [IndexedLetter(facts_of(letter)) for letter in letters], total

        letters, total = _indexed_or_not(by_index, by_topic)
        with_queue = len(opened.topics) > 1
    if as_json:
        click.echo(json.dumps([letter_json(letter) for letter in letters], indent=2))
    elif letters:
        click.echo("\n".join(letter_table(letters, with_queue=with_queue)))
    if not as_json:
        click.echo(
            count_line(total, len(letters), filtered=bool(chosen or states), after=bool(after)), err=True
        )
    if len(letters) == limit and (after or total > limit):
        key = letters[-1].key
        click.echo(f"more: --after {key.dead_at:.3f}/{key.queue}/{key.partition}:{key.offset}", err=True)


# --- show


@command.command("show")
@click.argument("reference", metavar="ID|PARTITION:OFFSET", type=read_reference)
@queue_option
@app_option
@pass_session
def show_letter(session: Session, reference: str | Position, queue: str | None, target: str | None) -> None:
    """Show one dead letter: payload, headers, errors with stacks, every attempt, and what was done since.

    Of a job with several letters the newest is shown. With --app it is also tried whether the job type of today takes
    the payload.
    """
    with open_desk(session.app(target)) as opened:

        def by_index() -> list[str]:
            _catch_up(opened, queue)
            found = opened.desk.find(reference, queue=queue)
            return letter_lines(found[0], open_letter(opened, found[0].letter), others=found[1:])

        def by_topic() -> list[str]:
            found = opened.desk.scan_for(reference, queue=queue)
            return letter_lines(found[0], open_letter(opened, found[0].letter), others=found[1:])

        click.echo("\n".join(_indexed_or_not(by_index, by_topic, silent=True)))


def _catch_up(opened: OpenDesk, queue: str | None) -> None:
    with meter("index") as told:
        opened.desk.catch_up(queue, on_read=told.tell)


def _indexed_or_not(by_index: Callable[[], T], by_topic: Callable[[], T], *, silent: bool = False) -> T:
    """Letters can be looked at without Postgres, too: slowly, and without what was done with them."""
    try:
        return by_index()
    except (StoreUnavailable, DatabaseNotMigrated) as error:
        if not silent:
            click.echo(
                f"read from the topics alone, for Postgres did not answer: {one_line(str(error))}", err=True
            )
        return by_topic()
