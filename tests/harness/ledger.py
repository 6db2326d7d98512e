"""Evidence in files of our own: lines that are appended one by one, so that a SIGKILL leaves them whole."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Acked", "Execution", "Ledger", "executions_in", "note_run"]


class Ledger:
    """A file of JSON lines. Several processes may append to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self._read: list[dict[str, Any]] = []

    def append(self, *entries: dict[str, Any]) -> None:
        """Write lines at once: they do not mix with those of others, and what the kernel has taken outlives this process."""
        lines = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, lines)
        finally:
            os.close(handle)

    def entries(self) -> list[dict[str, Any]]:
        """All whole lines. While others write, a reader may see the last one in part: it counts once it has its end."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            stream.seek(self._read_to)
            whole, end, _ = stream.read().rpartition(b"\n")
        self._read_to += len(whole) + len(end)
        self._read += [json.loads(line) for line in whole.splitlines()]
        return list(self._read)


class Acked(NamedTuple):
    """A publish that returned: the driver's side of the promise."""

    job_id: str
    topic: str
    partition: int
    offset: int
    tenant: str = ""
    sequence: int = -1  # of its tenant


@dataclass
class Execution:
    """One run of a handler. `ended` is 0 while it runs, or when its process was killed; `error` names what it raised."""

    job_id: str
    job_type: str
    name: str
    attempt: int
    token: int
    pid: int
    started: float
    ended: float = 0.0
    error: str = ""


def _now() -> float:
    """As the kernel tells it, whatever a test has done to the clock of this process."""
    return time.clock_gettime(time.CLOCK_REALTIME)


@contextmanager
def note_run(ledger: Ledger, **run: Any) -> Iterator[None]:
    """Note the start of a handler, and its end with the class of what it raised."""
    ledger.append({"event": "start", "at": _now(), **run})
    error = ""
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        ledger.append({"event": "end", "at": _now(), "error": error, **run})


def executions_in(entries: Iterable[dict[str, Any]]) -> list[Execution]:
    """The runs, in the order of their starts. A token is granted once, so it tells a job's runs apart."""
    runs: dict[tuple[str, int, int], Execution] = {}
    found: list[Execution] = []
    for entry in entries:
        facts = {name: value for name, value in entry.items() if name not in ("event", "at", "error")}
        key = (facts["job_id"], facts["token"], facts["pid"])
        if entry["event"] == "start":
            runs[key] = Execution(**facts, started=entry["at"])
            found.append(runs[key])
        else:
            runs[key].ended, runs[key].error = entry["at"], entry["error"]
    return found
