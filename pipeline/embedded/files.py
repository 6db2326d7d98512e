"""Small file helpers of the embedded servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["tail", "write_atomically"]


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write the whole file or nothing; it has `mode` from its first moment on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def tail(path: Path, *, lines: int = 15) -> str:
    """The last lines of a log, for an error message."""
    if not path.exists():
        return "(no log was written)"
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
