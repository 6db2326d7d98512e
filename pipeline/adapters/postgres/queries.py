"""The statements of the .sql files beside this one, by name."""

from __future__ import annotations

import re
from importlib.resources import files

__all__ = ["QUERIES"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*\n")


def _load() -> dict[str, bytes]:
    found = sorted(entry.name for entry in files(__package__).iterdir() if entry.name.endswith(".sql"))
    return {name: body for file in found for name, body in _statements(file).items()}


def _statements(file: str) -> dict[str, bytes]:
    text = (files(__package__) / file).read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    # Comments stay here: they would be sent, parsed and logged each time.
    return {
        name: _COMMENT.sub("\n", body).strip().encode()
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


QUERIES = _load()
