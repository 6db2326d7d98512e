"""Fetching one artifact, a jar mostly, alone, at its pinned version.

jgo finds and fetches single artifacts here; its transitive resolution is never used, because it settles
on a wrong kafka-clients. Mirrors that the user configured for jgo are used before the public repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["fetch_artifact", "progress"]

_TRIES = 3
_TIMEOUT = 30


def fetch_artifact(coordinate: str, sha256: str, *, target: Path) -> None:
    """Fetch one artifact, check it, and only then let it appear at `target`.

    Its coordinate is `group:artifact:version` for a jar, `group:artifact:version:classifier:type` for anything else.

    Raises EmbeddedError, saying what to do, when it cannot be fetched or is not the pinned file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    problem = ""
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            try:
                file = _resolve(coordinate, Path(scratch))
            except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
                problem = f"{type(error).__name__}: {error}"
                continue
            found = _sha256(file)
            if found == sha256:
                file.replace(target)
                return
            problem = f"its sha256 is {found}"
    raise EmbeddedError(_advice(coordinate, sha256, target=target, problem=problem))


def _resolve(coordinate: str, folder: Path) -> Path:
    try:
        from jgo.config import GlobalSettings  # noqa: PLC0415 - the extra may be absent
        from jgo.maven import MavenContext  # noqa: PLC0415
    except ImportError as error:
        raise EmbeddedError(
            "the embedded servers need the extra: pip install 'partitioned-pipeline[embedded]'"
        ) from error
    context = MavenContext(repo_cache=folder, timeout=_TIMEOUT)
    mirrors = GlobalSettings.load().repositories
    context.remote_repos = mirrors | {n: u for n, u in context.remote_repos.items() if n not in mirrors}
    group, artifact, version, *rest = coordinate.split(":")
    classifier, packaging = rest or ("", "jar")
    # Put together here: jgo's own parser takes a type that it does not know, such as tar.gz, for a version.
    return Path(
        context.project(group, artifact).at_version(version).artifact(classifier, packaging).resolve()
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _advice(coordinate: str, sha256: str, *, target: Path, problem: str) -> str:
    return (
        f"could not fetch {coordinate} after {_TRIES} tries: {problem}.\n"
        f"Start again to retry: what is already here is kept. Without a network, fetch that artifact on"
        f" another machine and put it at {target} (sha256 {sha256}). A Maven mirror can be named in jgo's own"
        " configuration file, in the section [repositories]."
    )


@contextlib.contextmanager
def progress(title: str, *, total: int, log: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Report steps: a bar on stderr when that is a terminal, else one plain line at the start."""
    if not sys.stderr.isatty():
        log(f"{title}: {total} files")
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal pays for it
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        done = -1

        def step(name: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, completed=done, description=f"{title}: {name}")

        yield step
