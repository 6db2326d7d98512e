"""`pipeline config`: the settings in force, and where each came from."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from pipeline.cli.common import Session, pass_session
from pipeline.config import Settings, setting_keys, show

__all__ = ["command", "describe"]


@click.group()
def command() -> None:
    """Look at the settings."""


@command.command("show")
@click.option("--format", "form", type=click.Choice(["toml", "json"]), default="toml", show_default=True)
@pass_session
def show_settings(session: Session, form: str) -> None:
    """Print every setting with its source; secrets are masked.

    What is printed as TOML can be used as pipeline.toml, once its secrets are filled in.
    """
    rows = list(describe(session.settings))
    if form == "json":
        click.echo(
            json.dumps({key: {"value": value, "source": source} for key, value, source in rows}, indent=2)
        )
    else:
        click.echo("\n".join(_toml(rows)))


def describe(settings: Settings) -> Iterator[tuple[str, object, str]]:
    """Each setting as (key, masked value, source); options of librdkafka one by one."""
    shown = show(settings)
    for key, setting in setting_keys().items():
        section, _, name = key.rpartition(".")
        value = shown[section][name] if section else shown[name]
        entries = (
            {f"{key}.{option}": inner for option, inner in value.items()} if setting.options else {key: value}
        )
        for entry, inner in entries.items():
            yield entry, inner, settings.origins.get(entry, "default")


def _toml(rows: list[tuple[str, object, str]]) -> Iterator[str]:
    section = ""
    for key, value, source in rows:
        path = key.split(".")
        table = ".".join(path[:2]) if len(path) > 2 else ".".join(path[:-1])
        if table != section:
            section = table
            yield f"\n[{table}]"
        name = key.removeprefix(f"{table}.") if table else key
        yield f"{_assignment(name, value)}  # {json.dumps(source)[1:-1]}"


def _assignment(name: str, value: object) -> str:
    quoted = json.dumps(name) if "." in name else name
    if value is None:  # TOML has no word for nothing
        return f'{quoted} = "off"' if name == "http_port" else f"# {quoted} is not set"
    return f"{quoted} = {json.dumps(value)}"
