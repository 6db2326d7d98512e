"""`pipeline db`: the tables in Postgres."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from pipeline.adapters.postgres import MigrationState, MigrationStatus, migrate, status
from pipeline.cli.common import Session, pass_session
from pipeline.cli.db_prune import prune

__all__ = ["command"]


@click.group()
def command() -> None:
    """Migrate the database, and forget what is old in it."""


command.add_command(prune)


@command.command("migrate")
@pass_session
def apply(session: Session) -> None:
    """Apply the migrations that are missing. May run at several places at once: one works, the others wait."""
    postgres = session.settings.postgres
    applied = migrate(
        postgres.dsn.get_secret_value(),
        schema=postgres.schema_name,
        connect_timeout=postgres.connect_timeout,
    )
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo(f"nothing to apply: schema {postgres.schema_name} is up to date")


@command.command("status")
@pass_session
def show_status(session: Session) -> None:
    """Show every migration. Exit code 1 unless all of this release, and no others, are applied."""
    postgres = session.settings.postgres
    found = status(
        postgres.dsn.get_secret_value(),
        schema=postgres.schema_name,
        connect_timeout=postgres.connect_timeout,
    )
    for migration in found:
        click.echo(_line(migration))
    if any(migration.state is not MigrationState.APPLIED for migration in found):
        sys.exit(1)


def _line(migration: MigrationStatus) -> str:
    when = ""
    if migration.applied_at:
        moment = datetime.fromtimestamp(migration.applied_at, UTC)
        when = f"  {moment:%Y-%m-%d %H:%M:%S} UTC"
    return f"{migration.name:<30}  {migration.state:<8}{when}".rstrip()
