"""Errors of psycopg -> ours. No text of ours holds a password: none is ever put into one."""

from __future__ import annotations

import re

import psycopg
from psycopg import conninfo, errors

from pipeline.errors import ConfigError, DatabaseNotMigrated, PipelineError, StoreUnavailable

__all__ = ["describe", "parse_dsn", "translate"]

# What a statement says that meets tables of another release, or none.
_OTHER_SCHEMA = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
)
_PORTS = re.compile(r"[0-9,]*")
_UNREADABLE = (
    "postgres.dsn cannot be read; allowed: postgresql://user:password@host:port/database, with special characters"
    " of the password as %XX, or host=... port=... dbname=... user=... password=..."
)


def translate(error: psycopg.Error, place: str) -> PipelineError:
    """Give our error for one of psycopg. `place` tells which server and database, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, _OTHER_SCHEMA):
        return DatabaseNotMigrated(f"{place}: {text}; 'pipeline db migrate' creates what is missing")
    # Internal errors too: a server that became a read-only standby is one of these.
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
        return StoreUnavailable(f"{place}: {text}")
    return PipelineError(f"{place} refused a statement: {text}")


def parse_dsn(dsn: str) -> dict[str, str]:
    """Split a URL or connection string. Raises `ConfigError`."""
    try:
        found = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # Libpq's own text quotes the part that it stumbles over, and that may be of the password.
        raise ConfigError(_UNREADABLE) from None
    parsed = {name: str(value) for name, value in found.items() if value is not None}
    # A bare '/' or '@' in a password moves the rest of it into the host or the database name, which are shown.
    misread = "@" in parsed.get("host", "")[1:] or "@" in parsed.get("dbname", "")
    if misread or not _PORTS.fullmatch(parsed.get("port", "")):
        raise ConfigError(_UNREADABLE)
    return parsed


def describe(parsed: dict[str, str]) -> str:
    """Which Postgres a parsed DSN means, for an error text."""
    host = parsed.get("host") or parsed.get("hostaddr") or "the local socket"
    return f"Postgres at {host}:{parsed.get('port', '5432')}, database {parsed.get('dbname', '(default)')}"
