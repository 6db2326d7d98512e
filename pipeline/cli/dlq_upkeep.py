"""`pipeline dlq reindex` and `purge`: the upkeep of the index."""

from __future__ import annotations

import click

from pipeline.cli.ages import read_age
from pipeline.cli.common import Session, pass_session
from pipeline.cli.dlq_options import queue_option
from pipeline.cli.dlq_progress import meter
from pipeline.cli.dlq_rows import letters_text
from pipeline.cli.text import printable
from pipeline.desk import open_desk

__all__ = ["purge", "reindex"]


@click.command()
@queue_option
@pass_session
def reindex(session: Session, *, queue: str | None) -> None:
    """Build the index of dead letters anew from the DLQ topics, which are the truth.

    What was done with letters stays known. It is needed only when the index is in doubt: what it lacks is looked for by
    every other command.
    """
    with open_desk(session.app(None)) as opened:
        with meter("reindex") as told:
            rebuilt = opened.desk.rebuild(queue, on_read=told.tell)
        for name, caught in rebuilt.items():
            click.echo(f"{printable(opened.topics[name])}: {letters_text(caught.added)} read")
            if caught.expired:
                click.echo(f"  gone from the topic while they waited: {caught.expired}")
            if caught.forgotten:
                click.echo(f"  not in the topic, which was made anew: {caught.forgotten}")


@click.command()
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    required=True,
    callback=read_age,
    help="Letters dealt with so long ago, such as 90d.",
)
@queue_option
@pass_session
def purge(session: Session, *, age: float, queue: str | None) -> None:
    """Forget letters that were dealt with long ago. Never one that waits.

    Removes rows of the index, not records of the topic: those are deleted by its retention.
    """
    with open_desk(session.app(None)) as opened:
        for name, caught in opened.desk.catch_up(queue).items():
            letters, outcomes = opened.index.purge(name, age=age, first=caught.starts)
            click.echo(
                f"{printable(name)}: forgotten: {letters_text(letters)}; outcomes of tasks: {outcomes}"
            )
