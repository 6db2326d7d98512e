"""The statements of queries.sql, by name."""

from __future__ import annotations

import re
from importlib.resources import files

__all__ = ["QUERIES"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*\n")


def _load() -> dict[str, bytes]:
    text = (files(__package__) / "queries.sql").read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    # Comments stay here: they would be sent, parsed and logged each time.
    return {
        name: _COMMENT.sub("\n", body).strip().encode()
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


QUERIES = _load()
