"""Options of `pipeline dlq` that choose letters, the same for every command."""

from __future__ import annotations

import getpass
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from math import inf
from typing import Any, TypeVar

import click

from pipeline.core.selection import BadReference, Position, Selection, parse_reference
from pipeline.desk import OpenDesk

__all__ = [
    "Chosen",
    "choosing",
    "need_choice",
    "operator_options",
    "queue_option",
    "read_reference",
    "who_am_i",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_AGO = re.compile(r"(\d{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_REFERENCE = re.compile(r"[0-9a-f]{16}|id:\d{1,10}|guid:[0-9a-f]{32}", re.IGNORECASE)
_VERSION = re.compile(r"(?:(?P<type>[A-Za-z0-9_.-]+)[:@])?v?(?P<version>\d{1,6})")


def read_reference(text: str) -> str | Position:
    """For `type=`: what names a letter."""
    try:
        return parse_reference(text)
    except BadReference as error:
        raise click.BadParameter(str(error)) from None


def _read_time(text: str) -> float:
    """A moment in epoch seconds, or how long ago it was."""
    if found := _AGO.fullmatch(text):
        return time.time() - timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text[:80]!r} is no time; allowed: ISO 8601 such as 2027-01-15T08:00 (UTC unless it says otherwise), "
            "or how long ago, such as 30m, 2h, 7d"
        ) from None


queue_option = click.option("--queue", help="Only the DLQ of this queue, or this DLQ topic of others.")

_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--id",
        {
            "metavar": "ID|PARTITION:OFFSET",
            "type": read_reference,
            "help": "This letter, or those of this job.",
        },
    ),
    ("--type", {"metavar": "TYPE", "help": "Letters of this job type."}),
    ("--tenant", {"metavar": "TENANT", "help": "Letters of this tenant."}),
    ("--reason", {"metavar": "REASON", "help": "Letters that died for this reason, such as max_attempts."}),
    (
        "--error",
        {
            "metavar": "CLASS",
            "help": "Letters whose last error is of this class, with or without its module.",
        },
    ),
    (
        "--schema",
        {
            "metavar": "SCHEMA",
            "help": "Letters written with this schema: TYPE:VERSION, a fingerprint, or id:NUMBER.",
        },
    ),
)


@dataclass(frozen=True)
class Chosen:
    """What the options choose. Versions of schemas are looked up by `selection`."""

    queue: str | None
    options: dict[str, Any]
    since: float
    until: float
    search: str

    def selection(self, opened: OpenDesk) -> Selection:
        """Raises `SchemaError` for a version that there is not, and `click.UsageError`."""
        given = self.options
        types = frozenset(given["type"])
        return Selection(
            references=frozenset(given["id"]),
            job_types=types,
            tenants=frozenset(given["tenant"]),
            reasons=frozenset(given["reason"]),
            errors=frozenset(given["error"]),
            schemas=frozenset(found for text in given["schema"] for found in _schemas(text, types, opened)),
            since=self.since,
            until=self.until,
            search=self.search,
        )

    def __bool__(self) -> bool:
        return any(self.options.values()) or bool(self.search) or self.since > 0 or self.until < inf


def _schemas(text: str, types: frozenset[str], opened: OpenDesk) -> list[str]:
    if _REFERENCE.fullmatch(text):
        return [text.lower()]
    found = _VERSION.fullmatch(text)
    if found is None or not (found["type"] or types):
        raise click.UsageError(
            f"--schema is {text[:80]!r}; allowed: TYPE:VERSION such as email.send:2, a version beside --type, "
            "a fingerprint of 16 hex digits, id:NUMBER, guid:HEX"
        )
    named = [found["type"]] if found["type"] else sorted(types)
    return [opened.fingerprint(job_type, int(found["version"])) for job_type in named]


def choosing(function: Function) -> Function:
    """Options that choose letters, given to the command as `chosen`. Of each, any value given will do."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = {name.lstrip("-"): kwargs.pop(f"_{name.lstrip('-')}") for name, _ in _OPTIONS}
        chosen = Chosen(
            kwargs.pop("queue"), given, kwargs.pop("since"), kwargs.pop("until"), kwargs.pop("search")
        )
        return function(*args, chosen=chosen, **kwargs)

    decorated: Any = called
    for option in reversed(_all_options()):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click gives back what it was given


def _all_options() -> list[Callable[[Any], Any]]:
    several = [click.option(name, f"_{name.lstrip('-')}", multiple=True, **more) for name, more in _OPTIONS]
    return [
        queue_option,
        *several,
        click.option(
            "--since",
            metavar="TIME",
            type=_read_time,
            default="1970-01-01",
            help="Letters that died then or later.",
        ),
        click.option(
            "--until",
            metavar="TIME",
            type=_read_time,
            default=None,
            callback=_or_never,
            help="Letters that died before.",
        ),
        click.option(
            "--search", metavar="TEXT", default="", help="Letters with this in their error's message."
        ),
    ]


def _or_never(_ctx: click.Context, _parameter: click.Parameter, value: float | None) -> float:
    return inf if value is None else value


def need_choice(chosen: Chosen, *, everything: bool) -> None:
    """A command that changes something wants to be told which letters, or that all are meant."""
    if everything and chosen:
        raise click.UsageError("--all leaves nothing to choose: give either it or filters")
    if not everything and not chosen:
        raise click.UsageError(
            "which letters? Name some with --id, --type, --tenant, --reason, --error, --schema, --since, --until or "
            "--search, or take --all"
        )


def operator_options(function: Function) -> Function:
    """Who does it, and why: kept with what was done."""
    who = click.option(
        "--who", default=who_am_i, metavar="NAME", help="Who does it; by default the login name."
    )
    why = click.option(
        "--why", default="", metavar="TEXT", help="Why it is done. Both are kept: `pipeline dlq audit`."
    )
    return who(why(function))


def who_am_i() -> str:
    """The login name and the host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
