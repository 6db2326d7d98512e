"""`pipeline schemas`: write, check, compare, release and register the schemas of payloads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from pipeline.adapters.avro.catalog import SchemaCatalog, SchemaVersion
from pipeline.adapters.avro.checking import Checked, check_folder, check_pair
from pipeline.adapters.avro.generating import schema_text
from pipeline.adapters.avro.lock import locked, write_lock
from pipeline.adapters.avro.models import check_model
from pipeline.adapters.avro.parsing import parse
from pipeline.cli.common import Session, app_option, pass_session
from pipeline.cli.schemas_diff import diff_lines
from pipeline.cli.schemas_live import live_findings
from pipeline.cli.schemas_registry import push_schemas, registry_findings
from pipeline.cli.text import table
from pipeline.core.findings import Finding
from pipeline.errors import ConfigError, SchemaError
from pipeline.lookups import schema_registry

__all__ = ["command"]

_dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the schemas, instead of the one in the settings.",
)


@click.group()
def command() -> None:
    """Write, check, compare, release and register the schemas of payloads."""


@command.command("new")
@click.argument("job_type", metavar="TYPE")
@click.option(
    "--from", "source", required=True, metavar="MODULE:MODEL", help="The pydantic model of the payload."
)
@click.option("--namespace", help="Of the record's name, for the first version; by default from TYPE.")
@click.option(
    "--enum-default",
    "enum_defaults",
    multiple=True,
    metavar="ENUM=SYMBOL",
    help="What readers take for symbols that they do not know.",
)
@_dir_option
@pass_session
def _new(
    session: Session,
    job_type: str,
    source: str,
    namespace: str | None,
    enum_defaults: tuple[str, ...],
    folder: Path | None,
) -> None:
    """Write the first or the next version of TYPE from a model. Nothing is written that would not pass the check."""
    place = folder or session.settings.schemas_dir or Path("schemas")
    versions = SchemaCatalog(place).versions(job_type) if (place / job_type).is_dir() else []
    text = schema_text(
        _load_model(source),
        namespace=namespace or job_type.rpartition(".")[0].replace("-", "_") or "jobs",
        previous=versions[-1] if versions else None,
        enum_defaults=dict(_pair(given) for given in enum_defaults),
    )
    candidate = _candidate(place, job_type, len(versions) + 1, text)
    if versions and candidate.schema == versions[-1].schema:
        raise SchemaError(f"{versions[-1].path} says the same as {source} already: there is nothing to write")
    findings = [found for version in versions for found in _both_ways(candidate, version)]
    _refuse(findings, f"{candidate.path} was not written")
    candidate.path.parent.mkdir(parents=True, exist_ok=True)
    candidate.path.write_text(text, encoding="utf-8")
    click.echo(f"{candidate.path} written; `pipeline schemas release` makes it final")


def _candidate(place: Path, job_type: str, number: int, text: str) -> SchemaVersion:
    path = place / job_type / f"v{number}.avsc"
    return SchemaVersion(**vars(parse(text, str(path))), job_type=job_type, version=number, path=path)


def _both_ways(one: SchemaVersion, other: SchemaVersion) -> list[Finding]:
    return [*check_pair(one, other), *check_pair(other, one)]


def _pair(given: str) -> tuple[str, str]:
    name, equals, symbol = given.partition("=")
    if not equals:
        raise ConfigError(f"--enum-default is {given!r}; allowed: ENUM=SYMBOL, such as Currency=OTHER")
    return name, symbol


def _load_model(source: str) -> type[BaseModel]:
    module_name, _, name = source.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--from is {source!r}; there is no module {error.name!r}") from error
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise ConfigError(f"--from is {source!r}; {name!r} in {module_name} is no pydantic model")
    return found


@command.command("check")
@_dir_option
@click.option(
    "--against-live", is_flag=True, help="Look at the versions that wait in main, retry and DLQ topics, too."
)
@click.option("--registry", "url", metavar="URL", help="Ask this schema registry about each version, too.")
@app_option
@pass_session
def _check(
    session: Session, folder: Path | None, *, against_live: bool, url: str | None, target: str | None
) -> None:
    """Judge the schemas; exits with 1 when anything is wrong. Needs neither servers nor a network, unless told to ask them.

    Every version must be readable as every other, in both directions, as publishers and workers are upgraded in any order and old
    payloads wait for weeks. With --app the models are compared with their newest versions.
    """
    checked = check_folder(_folder(session, folder))
    findings = [*checked.findings, *_model_findings(session, checked, target)]
    if against_live:
        findings += live_findings(session.app(None), checked, click.echo)
    if url:
        registry = schema_registry(session.settings, url=url)
        assert registry is not None
        findings += registry_findings(registry, checked)
    _refuse(findings, f"{_count(findings)} in {checked.folder}")
    for version in checked.unreleased():
        click.echo(f"{version.path} is not released yet")
    versions = sum(map(len, checked.versions.values()))
    click.echo(
        f"{versions} versions of {len(checked.versions)} job types in {checked.folder}: nothing is wrong"
    )


def _model_findings(session: Session, checked: Checked, target: str | None) -> list[Finding]:
    if target is None:
        return []
    findings: list[Finding] = []
    for job_type in session.app(target).registry.job_types():
        versions = checked.versions.get(job_type.name)
        if versions:
            findings += check_model(job_type.model, versions[-1])
        else:
            place = str(checked.folder / job_type.name)
            findings.append(
                Finding(
                    "model-differs", place, "", "", f"job type {job_type.name} has no schema that can be read"
                )
            )
    return findings


@command.command("list")
@_dir_option
@pass_session
def _list(session: Session, folder: Path | None) -> None:
    """The versions that there are."""
    checked = check_folder(_folder(session, folder))
    rows = [
        (
            job_type,
            f"v{version.version}",
            version.fingerprint.hex(),
            "yes" if version.version in checked.lock.get(job_type, {}) else "no",
            version.fullname,
            len(version.schema["fields"]),
        )
        for job_type, versions in checked.versions.items()
        for version in versions
    ]
    if rows:
        click.echo(
            "\n".join(table(("job type", "version", "fingerprint", "released", "record", "fields"), rows))
        )
    for found in checked.findings:
        if found.rule == "unreadable":
            click.echo(f"{found.file}: {found.problem}")


@command.command("diff")
@click.argument("job_type", metavar="TYPE")
@click.argument("old", required=False, metavar="[OLD]")
@click.argument("new", required=False, metavar="[NEW]")
@_dir_option
@pass_session
def _diff(session: Session, job_type: str, old: str | None, new: str | None, folder: Path | None) -> None:
    """What changed from version OLD to NEW of TYPE (v1, v2 ...; by default the last two), and whether they read each other."""
    versions = SchemaCatalog(_folder(session, folder)).versions(job_type)
    before = _choose(versions, old or f"v{max(1, len(versions) - 1)}")
    after = _choose(versions, new or f"v{len(versions)}")
    for line in diff_lines(before, after):
        click.echo(line)
    _refuse(_both_ways(after, before), f"{before.label} and v{after.version} do not read each other")


def _choose(versions: Sequence[SchemaVersion], name: str) -> SchemaVersion:
    for version in versions:
        if name in (f"v{version.version}", str(version.version)):
            return version
    known = ", ".join(f"v{version.version}" for version in versions)
    raise SchemaError(f"version is {name!r}; allowed for {versions[0].job_type}: {known}")


@command.command("release")
@click.argument("job_types", nargs=-1, metavar="[TYPE...]")
@_dir_option
@pass_session
def _release(session: Session, job_types: tuple[str, ...], folder: Path | None) -> None:
    """Enter new versions of TYPE, or of all types, into lock.json. From then on their text must stay as it is."""
    checked = check_folder(_folder(session, folder))
    for unknown in sorted(set(job_types) - checked.versions.keys()):
        raise SchemaError(
            f"job type {unknown!r} has no schemas in {checked.folder}; there are: {', '.join(checked.versions)}"
        )
    _refuse([found for found in checked.findings if found.rule != "not-released"], "nothing was released")
    released = [version for version in checked.unreleased() if not job_types or version.job_type in job_types]
    for version in released:
        checked.lock.setdefault(version.job_type, {})[version.version] = locked(version)
        click.echo(f"released {version.label}")
    if not released:
        click.echo("there is nothing new to release")
        return
    write_lock(checked.folder, checked.lock)


@command.command("push")
@click.option(
    "--registry", "url", metavar="URL", help="The schema registry, instead of the one in the settings."
)
@_dir_option
@pass_session
def _push(session: Session, url: str | None, folder: Path | None) -> None:
    """Register every released version in the schema registry: a step of each deployment, before its publishers start."""
    registry = schema_registry(session.settings, url=url or "")
    if registry is None:
        raise ConfigError(
            "schema_registry.url is empty; allowed here: the address of a schema registry, or --registry URL"
        )
    checked = check_folder(_folder(session, folder))
    _refuse(checked.findings, "nothing was registered")
    push_schemas(registry, checked, click.echo)


# --- shared


def _folder(session: Session, folder: Path | None) -> Path:
    chosen = folder or session.app(None)._schemas_dir()  # noqa: SLF001 - as the codec finds it
    if not chosen.is_dir():
        raise SchemaError(
            f"there is no folder {chosen}; --dir or the setting schemas_dir names the one with the schemas"
        )
    return chosen


def _refuse(findings: Sequence[Finding], what: str) -> None:
    """Print what is wrong, and raise `SchemaError` when anything is."""
    for found in findings:
        place = f" field {found.place}:" if found.place else ""
        versions = f" {found.versions}:" if found.versions else ""
        click.echo(f"{found.file}:{place}{versions} {found.problem} [{found.rule}]")
        click.echo(f"    instead: {found.advice}")
    if findings:
        raise SchemaError(what)


def _count(findings: Sequence[Finding]) -> str:
    return "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
