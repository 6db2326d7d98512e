"""The gate for changes of schemas: everything that can be judged from the files alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from pipeline.adapters.avro import official
from pipeline.adapters.avro.catalog import SchemaCatalog, SchemaVersion
from pipeline.adapters.avro.defaults import bad_defaults
from pipeline.adapters.avro.lock import LOCK_NAME, Lock, compare, read_lock
from pipeline.adapters.avro.logical import reading_form
from pipeline.adapters.avro.parsing import ParsedSchema
from pipeline.adapters.avro.reading import Reader, read
from pipeline.adapters.avro.samples import sample_payloads
from pipeline.adapters.avro.tree import Schema, children, counterparts, describe_type, kind, resolve
from pipeline.adapters.avro.writers import Writer
from pipeline.core.findings import Finding
from pipeline.errors import PayloadError, SchemaError

__all__ = ["Checked", "check_folder", "check_pair", "job_types_in"]

SAMPLES = 120
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Checked:
    """What is in a folder of schemas, and what is wrong with it. `versions` are by job type, oldest first."""

    folder: Path
    versions: dict[str, list[SchemaVersion]] = field(default_factory=dict)
    lock: Lock = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def unreleased(self) -> list[SchemaVersion]:
        return [
            version
            for job_type, versions in self.versions.items()
            for version in versions
            if version.version not in self.lock.get(job_type, {})
        ]


def check_folder(folder: Path) -> Checked:
    """Read every schema below the folder and judge them all; nothing is raised for what is wrong with a schema."""
    checked = Checked(folder)
    _read(checked)
    for versions in checked.versions.values():
        for version in versions:
            checked.findings += _alone(version)
        for reader, writer in permutations(versions, 2):
            checked.findings += check_pair(reader, writer)
    checked.findings += _shared_names(checked.versions)
    checked.findings += compare(folder, checked.lock, checked.versions)
    return checked


def job_types_in(folder: Path) -> list[str]:
    """The job types that have a folder there."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _read(checked: Checked) -> None:
    try:
        checked.lock = read_lock(checked.folder)
    except SchemaError as error:
        checked.findings.append(Finding("bad-lock", str(checked.folder / LOCK_NAME), "", "", str(error)))
    catalog = SchemaCatalog(checked.folder)
    for job_type in job_types_in(checked.folder):
        try:
            versions = catalog.versions(job_type)
        except SchemaError as error:
            place = str(checked.folder / job_type)
            checked.findings.append(Finding("unreadable", place, "", "", str(error)))
            continue
        faults = [(version, official.parse_problem(version.text)) for version in versions]
        checked.findings += [_on(version, "unreadable", "", fault) for version, fault in faults if fault]
        if not any(fault for _, fault in faults):
            checked.versions[job_type] = versions


def _on(version: SchemaVersion, rule: str, place: str, problem: str) -> Finding:
    return Finding(rule, str(version.path), place, f"v{version.version}", problem)


# --- one version


def _alone(version: SchemaVersion) -> Iterator[Finding]:
    if "." not in version.fullname:
        yield _on(version, "no-namespace", "", f"the record {version.fullname} has no namespace")
    for place, node in _named_types(version):
        if node["type"] == "enum" and "default" not in node:
            yield _on(version, "enum-without-default", place, f"the enum {node['name']} has no default")
        for name in node.get("symbols", ()) or [each["name"] for each in node.get("fields", ())]:
            if not _NAME.fullmatch(name):
                yield _on(version, "bad-name", place, f"{name!r} is no name in Avro")
    for place, problem in bad_defaults(version):
        yield _on(version, "bad-default", place, problem)


def _named_types(schema: ParsedSchema) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every record, enum and fixed type, with the place where it comes first."""
    seen: set[str] = set()

    def walk(node: Schema, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        node = resolve(node, schema.named)
        if isinstance(node, dict) and "name" in node:
            if node["name"] in seen:
                return
            seen.add(node["name"])
            yield path.lstrip("."), node
        for step, child in children(node):
            yield from walk(child, path + step)

    return walk(schema.schema, "")


def _shared_names(found: Mapping[str, Sequence[SchemaVersion]]) -> Iterator[Finding]:
    owners: dict[str, list[SchemaVersion]] = defaultdict(list)
    for versions in found.values():
        owners[versions[-1].fullname].append(versions[-1])
    for name, newest in owners.items():
        for version in newest[1:]:
            problem = f"the record {name} is that of job type {newest[0].job_type}, too"
            yield _on(version, "shared-name", "", problem)


# --- two versions


def check_pair(reader: SchemaVersion, writer: ParsedSchema) -> Iterator[Finding]:
    """Can payloads of `writer` be read as `reader`, in every language, and is what is read what was written?"""
    label = f"v{writer.version}" if isinstance(writer, SchemaVersion) else writer.label
    versions = f"written as {label}, read as v{reader.version}"

    def found(rule: str, place: str, problem: str) -> Finding:
        return Finding(rule, str(reader.path), place, versions, problem)

    obstacles = official.obstacles(reader.text, writer.text)
    for obstacle in obstacles:
        yield found("incompatible", obstacle.place, f"{obstacle.kind} ({obstacle.message})")
    yield from (found(rule, place, problem) for rule, place, problem in _silent_changes(reader, writer))
    if not obstacles and (problem := _sample_problem(reader, writer)):
        yield found("sample-failed", "", problem)


def _silent_changes(reader: ParsedSchema, writer: ParsedSchema) -> Iterator[tuple[str, str, str]]:
    """What no checker of compatibility notices."""
    for path, mine, theirs in counterparts(reader.schema, reader.named, writer.schema, writer.named):
        problem = f"{describe_type(theirs)} became {describe_type(mine)}"
        if _logical(mine) != _logical(theirs):
            yield "logical-type-changed", path, problem
        elif {kind(mine), kind(theirs)} == {"bytes", "string"}:
            yield "bytes-and-string", path, problem


def _logical(schema: Schema) -> tuple[object, ...]:
    """Whatever a logical type says, also one that this package does not know."""
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return ()
    return (str(schema["logicalType"]), schema.get("precision"), schema.get("scale", 0))


def _sample_problem(reader: ParsedSchema, writer: ParsedSchema) -> str:
    written, target = Writer(writer, reading_form(writer)), reading_form(reader)
    for number, payload in enumerate(sample_payloads(writer, SAMPLES)):
        try:
            read("a generated payload", payload, Reader(written, target, 0, bounded=True))
        except PayloadError as error:
            return f"{error} (number {number})"
    return ""
