"""`lock.json` beside the schemas: what was released, and must stay as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pipeline.adapters.avro.catalog import SchemaVersion
from pipeline.core.findings import Finding
from pipeline.errors import SchemaError

__all__ = ["LOCK_NAME", "Lock", "Locked", "compare", "locked", "read_lock", "write_lock"]

LOCK_NAME = "lock.json"


class Locked(NamedTuple):
    """A released version."""

    name: str
    sha256: str
    fingerprint: str


Lock: TypeAlias = dict[str, dict[int, Locked]]


def locked(version: SchemaVersion) -> Locked:
    """What the lock says of a version. Line ends do not count: version control may change them."""
    text = version.text.replace("\r\n", "\n")
    return Locked(version.fullname, hashlib.sha256(text.encode()).hexdigest(), version.fingerprint.hex())


def read_lock(schemas_dir: Path) -> Lock:
    """The lock of that folder; empty where there is none. Raises `SchemaError`."""
    path = schemas_dir / LOCK_NAME
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {job_type: _versions(versions) for job_type, versions in document.items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise SchemaError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _versions(document: Mapping[str, Mapping[str, Any]]) -> dict[int, Locked]:
    return {
        int(name.removeprefix("v")): Locked(entry["name"], entry["sha256"], entry["fingerprint"])
        for name, entry in document.items()
    }


def write_lock(schemas_dir: Path, lock: Lock) -> None:
    """Replace the lock as a whole."""
    document = {
        job_type: {f"v{number}": versions[number]._asdict() for number in sorted(versions)}
        for job_type, versions in sorted(lock.items())
    }
    path = schemas_dir / LOCK_NAME
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def compare(schemas_dir: Path, lock: Lock, found: Mapping[str, Sequence[SchemaVersion]]) -> Iterator[Finding]:
    """What was released and has changed or gone, and versions that were passed over. `found` is by job type."""
    for job_type, released in sorted(lock.items()):
        there = {version.version: version for version in found.get(job_type, ())}
        for number, entry in sorted(released.items()):
            path = str(schemas_dir / job_type / f"v{number}.avsc")
            if number not in there:
                yield Finding(
                    "released-vanished", path, "", f"v{number}", "it was released, and is not there"
                )
            elif locked(there[number]) != entry:
                yield Finding(
                    "released-changed", path, "", f"v{number}", "its text is not the one that was released"
                )
        for number in sorted(there):
            if number not in released and number < max(released, default=0):
                path = str(there[number].path)
                yield Finding(
                    "not-released", path, "", f"v{number}", "a later version was released before it"
                )
