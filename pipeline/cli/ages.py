"""Ages on the command line: `12h`, `90d`, `4w`."""

from __future__ import annotations

import re
from datetime import timedelta

import click

__all__ = ["read_age"]

_AGE = re.compile(r"(\d{1,6})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def read_age(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """In seconds; for the `callback` of an option."""
    if text is None:
        return None
    found = _AGE.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text[:80]!r} is no age; allowed: hours, days or weeks, such as 12h, 90d, 4w"
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()
