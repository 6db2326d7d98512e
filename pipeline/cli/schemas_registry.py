"""The schemas and a registry: what differs, and how they get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.adapters.avro.checking import Checked
from pipeline.adapters.registry import LEVEL, RegistryClient
from pipeline.core.findings import Finding
from pipeline.errors import SchemaError

__all__ = ["push_schemas", "registry_findings"]


def registry_findings(registry: RegistryClient, checked: Checked) -> Iterator[Finding]:
    """Every version that is registered, asked for one by one: not every registry can be asked for all at once."""
    for versions in checked.versions.values():
        newest = versions[-1]
        registered = registry.versions(newest.fullname)
        level = registry.level(newest.fullname) if registered else LEVEL
        if level != LEVEL:
            problem = f"{registry.url} checks subject {newest.fullname} at level {level or 'of the registry'}, not {LEVEL}"
            yield Finding("registry-level", str(newest.path), "", "", problem)
        for number in registered:
            refusal = registry.refusal(newest.fullname, number, newest.text)
            if refusal is not None:
                between = f"v{newest.version}, version {number} in the registry"
                yield Finding("registry-incompatible", str(newest.path), "", between, refusal)


def push_schemas(registry: RegistryClient, checked: Checked, write: Callable[[str], None]) -> None:
    """Set the level, read it back, register all versions, oldest first. Pushing again changes nothing.

    Raises `SchemaError` for a version that is not released, and for one that the registry refuses.
    """
    for version in checked.unreleased():
        raise SchemaError(
            f"{version.path} is not released, and what is registered stays: `pipeline schemas release` first"
        )
    for versions in checked.versions.values():
        subject = versions[-1].fullname
        registry.set_level(subject)
        for version in versions:
            number = registry.register(subject, version.text)
            write(f"{version.label} has the id {number} in subject {subject}")
