"""`pipeline db prune`: what workers do by themselves, at once and by hand."""

from __future__ import annotations

from contextlib import closing

import click

from pipeline.cli.ages import read_age
from pipeline.cli.common import Session, pass_session
from pipeline.cli.text import duration
from pipeline.errors import ConfigError

__all__ = ["prune"]


@click.command()
@click.option(
    "--older-than",
    "keep",
    metavar="AGE",
    callback=read_age,
    help="Jobs that ended so long ago, such as 90d (default: the setting postgres.retention).",
)
@click.option("--execute", is_flag=True, help="Delete them; without it only count them.")
@pass_session
def prune(session: Session, *, keep: float | None, execute: bool) -> None:
    """Forget jobs that ended long ago, and workers that are gone.

    Workers do so all the time, bit by bit. A job that is forgotten runs again when it is published once more under the same
    idempotency key. Jobs with a letter in the index of dead letters stay.
    """
    seconds = _keep(session, keep)
    with closing(session.app(None).pruning()) as pruning:
        found = pruning.all(seconds, on_step=_tell) if execute else pruning.count(seconds)
    done = "forgotten" if execute else "to be forgotten (--execute does it)"
    click.echo(f"ended more than {duration(seconds)} ago: {found.jobs} jobs, {found.workers} workers {done}")


def _keep(session: Session, given: float | None) -> float:
    """Raises `ConfigError`."""
    keep = session.settings.postgres.retention if given is None else given
    if keep == -1:
        raise ConfigError("postgres.retention is -1: nothing is forgotten; allowed: --older-than AGE")
    return keep


def _tell(jobs: int) -> None:
    click.echo(f"{jobs} jobs forgotten so far", err=True)
