"""Text for terminals: what came from outside is escaped, so that no record can move the cursor or hide a line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pipeline.core.job import EPOCH_LIMIT

__all__ = ["clip", "duration", "indented", "iso", "one_line", "printable", "table", "when"]


def printable(text: str) -> str:
    """Escape whatever is no plain character: controls, line ends, marks that turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def clip(text: str, limit: int) -> str:
    """Escaped, and cut to `limit` characters."""
    shown = printable(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def one_line(text: str, limit: int = 300) -> str:
    """A message of several lines as one, escaped and cut."""
    return clip(" ".join(text.split()), limit)


def indented(text: str, margin: str) -> list[str]:
    """The lines of a text that has several, each escaped."""
    return [f"{margin}{printable(line)}" for line in text.rstrip("\n").split("\n")] if text.strip() else []


def when(seconds: float) -> str:
    """A moment in UTC, to the second; `-` for none."""
    return f"{_moment(seconds):%Y-%m-%d %H:%M:%SZ}" if _is_moment(seconds) else "-"


def iso(seconds: float) -> str | None:
    """A moment in ISO 8601, for machines."""
    return _moment(seconds).isoformat(timespec="milliseconds") if _is_moment(seconds) else None


def _is_moment(seconds: float) -> bool:
    return 0 < seconds <= EPOCH_LIMIT


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def duration(seconds: float) -> str:
    """`0.042 s`, `12.3 s`, `5 min 12 s`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns as wide as their widest cell, those of numbers to the right. Texts must be escaped already."""
    cells = [[*head], *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_cell, line, widths, numeric or [False] * len(head))).rstrip() for line in cells]


def _cell(text: str, width: int, right: bool) -> str:  # noqa: FBT001 - mapped over columns
    return text.rjust(width) if right else text.ljust(width)
