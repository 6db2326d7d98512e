"""The broker's jars: which ones (the lock), where they are kept, and whether they are intact.

The lock names every jar with its sha256. All of them are hashed at each start (44 MB, about 0.1 s), so a
damaged or foreign file in the cache is noticed and fetched again, however it came there.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.embedded.download import fetch_artifact, progress
from pipeline.embedded.locks import FileLock
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Jar", "cache_root", "ensure_jars", "kafka_version", "read_lock"]

_BROKER = "org.apache.kafka:kafka_2.13"


@dataclass(frozen=True)
class Jar:
    """One pinned artifact: Maven coordinate `group:artifact:version` and the sha256 of its file."""

    coordinate: str
    sha256: str

    @property
    def filename(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def ensure_jars(log: Callable[[str], None], *, cache: Path | None = None) -> list[Path]:
    """Every jar of the lock, intact, on this machine: downloads what is missing. May take minutes.

    Safe in two processes at once: the second waits for the first, then finds the jars there. Raises
    EmbeddedError when a jar cannot be fetched.
    """
    jars = read_lock()
    folder = (cache or cache_root()) / f"kafka-{kafka_version(jars)}"
    missing = _missing(folder, jars)
    if missing:
        try:
            with FileLock(folder / ".lock"):
                _download(folder, _missing(folder, jars), log)
        except OSError as error:
            raise EmbeddedError(
                f"cannot keep the Kafka jars in {folder}: {error}."
                " PIPELINE_CACHE_DIR names another folder for them"
            ) from error
    return [folder / jar.filename for jar in jars]


def cache_root() -> Path:
    """Where downloads are kept for this user: PIPELINE_CACHE_DIR, or `pipeline` in the user's cache folder."""
    own = os.environ.get("PIPELINE_CACHE_DIR")
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "pipeline"


def read_lock(path: Path | None = None) -> list[Jar]:
    """The pinned jars, from the lock beside this module (installed) or in infra/ (a checkout)."""
    path = path or _lock_path()
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [_parse(line, path) for line in lines if line and not line.startswith("#")]


def kafka_version(jars: Sequence[Jar]) -> str:
    for jar in jars:
        if jar.coordinate.startswith(f"{_BROKER}:"):
            return jar.coordinate.rpartition(":")[2]
    raise EmbeddedError(f"the lock of the Kafka jars names no {_BROKER}")


def _lock_path() -> Path:
    here = Path(__file__).parent
    name = "kafka-jars.lock"
    for candidate in (here / name, here.parents[1] / "infra" / name):
        if candidate.exists():
            return candidate
    raise EmbeddedError(f"{name} is missing from {here}: reinstall the package")


def _parse(line: str, path: Path) -> Jar:
    coordinate, _, sha256 = line.partition(" ")
    if coordinate.count(":") != 2 or len(sha256) != 64:
        raise EmbeddedError(f"{path}: {line!r} is not 'group:artifact:version sha256'")
    return Jar(coordinate, sha256)


def _missing(folder: Path, jars: Sequence[Jar]) -> list[Jar]:
    return [jar for jar in jars if not _is_intact(folder / jar.filename, jar)]


def _is_intact(path: Path, jar: Jar) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256


def _download(folder: Path, jars: Sequence[Jar], log: Callable[[str], None]) -> None:
    if not jars:
        return
    damaged = [jar.filename for jar in jars if (folder / jar.filename).exists()]
    if damaged:
        log(f"damaged in {folder}, fetched again: {', '.join(damaged)}")
    with progress(f"downloading Kafka {folder.name.partition('-')[2]}", total=len(jars), log=log) as step:
        for jar in jars:
            step(jar.filename)
            fetch_artifact(jar.coordinate, jar.sha256, target=folder / jar.filename)
    log(f"{len(jars)} jars are now in {folder}")
