"""The schemas that this process ships: `<directory>/<job type>/vN.avsc`, each file parsed once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.adapters.avro.parsing import ParsedSchema, parse
from pipeline.errors import SchemaError

__all__ = ["SchemaCatalog", "SchemaVersion", "packaged_schemas_dir"]

_JOB_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_FILE = re.compile(r"v([1-9][0-9]*)\.avsc")


@dataclass(frozen=True, kw_only=True)
class SchemaVersion(ParsedSchema):
    """One released version of a job type's payload."""

    job_type: str
    version: int
    path: Path

    @property
    def label(self) -> str:
        return f"{self.job_type} v{self.version}"


class SchemaCatalog:
    """Reads schemas from a directory. What was read once stays, so a look-up costs a dict access."""

    def __init__(self, schemas_dir: Path) -> None:
        self._dir = schemas_dir
        self._loaded: dict[str, list[SchemaVersion]] = {}

    def versions(self, job_type: str) -> list[SchemaVersion]:
        """All versions, oldest first. Raises `SchemaError` that names the directory or the file at fault."""
        known = self._loaded.get(job_type)
        if known is None:
            known = self._loaded[job_type] = self._load(job_type)
        return list(known)

    def latest(self, job_type: str) -> SchemaVersion:
        """The newest version: what is written, and what everything older is read as."""
        return self.versions(job_type)[-1]

    def loaded(self) -> list[SchemaVersion]:
        """Every version of every job type that was asked for so far."""
        return [version for versions in list(self._loaded.values()) for version in versions]

    def _load(self, job_type: str) -> list[SchemaVersion]:
        # The name may come from a record's header: it must not lead out of the directory.
        if not _JOB_TYPE.fullmatch(job_type):
            raise SchemaError(
                f"job type {job_type!r}: allowed are letters, digits, '_' and '-', joined by dots"
            )
        directory = self._dir / job_type
        numbers = sorted(_version_number(path) for path in directory.glob("*.avsc"))
        if not numbers:
            raise SchemaError(f"job type {job_type!r} has no schema: expected {directory / 'v1.avsc'}")
        missing = set(range(1, numbers[-1])) - set(numbers)
        if missing:
            raise SchemaError(f"{directory}: v{min(missing)}.avsc is missing; released versions must stay")
        versions = [_read(directory / f"v{number}.avsc", job_type, number) for number in numbers]
        _refuse_renamed(versions)
        return versions


def packaged_schemas_dir() -> Path | None:
    """The schemas inside the installed package, or those beside it in a source checkout; None if neither is there."""
    package = Path(__file__).parents[2]
    if (package / "_schemas").is_dir():
        return package / "_schemas"
    checkout = package.parent
    # In site-packages a folder `schemas` would be somebody else's: only a checkout has the project file.
    if (checkout / "pyproject.toml").is_file() and (checkout / "schemas").is_dir():
        return checkout / "schemas"
    return None


def _version_number(path: Path) -> int:
    match = _FILE.fullmatch(path.name)
    if match is None:
        raise SchemaError(f"{path}: schema files are named v1.avsc, v2.avsc and so on")
    return int(match.group(1))


def _read(path: Path, job_type: str, version: int) -> SchemaVersion:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: cannot be read: {error}") from error
    parsed = parse(text, str(path))
    return SchemaVersion(**vars(parsed), job_type=job_type, version=version, path=path)


def _refuse_renamed(versions: list[SchemaVersion]) -> None:
    """Avro matches records by name: a renamed one could not be read across versions."""
    first = versions[0]
    for other in versions[1:]:
        if other.fullname != first.fullname:
            raise SchemaError(
                f"{other.path}: the record is named {other.fullname}, but {first.fullname} in v{first.version}"
            )
