"""Flags, environment and file -> `Settings`, or one error that lists everything that is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipeline.config.base import Clash
from pipeline.config.keys import is_secret_option, option_of, setting_keys
from pipeline.config.layers import Layer, env_layer, file_layer, flag_layer
from pipeline.config.settings import Settings, active_layers
from pipeline.errors import ConfigError

__all__ = ["load_settings"]

DEFAULT_FILE = Path("pipeline.toml")
MAX_SHOWN = 200
_IN_URL = re.compile(r"//[^/]*@")  # a user and a password, where none are allowed


def load_settings(
    overrides: Mapping[str, object] | None = None,
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read all settings: `overrides` (dotted keys) before the environment before the file before the defaults.

    The file is `config_file`, else the one that PIPELINE_CONFIG names, else `pipeline.toml` in the working directory if
    there is one. Raises `ConfigError` with a line for each thing that is wrong.
    """
    env = os.environ if environ is None else environ
    path = config_file or (Path(env["PIPELINE_CONFIG"]) if env.get("PIPELINE_CONFIG") else None)
    layers = [flag_layer(overrides or {}), env_layer(env)]
    if path is not None or DEFAULT_FILE.is_file():
        layers.append(file_layer(path or DEFAULT_FILE))
    problems = [problem for layer in layers for problem in layer.problems]
    settings = _build(layers, problems)
    if settings is None or problems:
        raise ConfigError("\n".join(problems))
    return settings


def _build(layers: Sequence[Layer], problems: list[str]) -> Settings | None:
    given = active_layers.set(tuple(layer.nested() for layer in layers))
    try:
        settings = Settings()
    except ValidationError as error:
        problems.extend(_explain(detail, layers) for detail in error.errors())
        return None
    finally:
        active_layers.reset(given)
    for layer in reversed(layers):
        settings._origins.update(layer.origins)  # noqa: SLF001 - its loader
    return settings


def _explain(detail: ErrorDetails, layers: Sequence[Layer]) -> str:
    clash = detail.get("ctx", {}).get("error")
    if isinstance(clash, Clash):
        return f"{clash.key} is {clash.value!r}{_origin(clash.key, layers)}; allowed: {clash.allowed}"
    key = _key(detail["loc"])
    setting = setting_keys()[key]
    return f"{key} is {_shown(key, layers)}{_origin(key, layers)}; allowed: {setting.allowed}"


def _key(location: tuple[int | str, ...]) -> str:
    """The setting that an error is about: its location may point inside, at an item of a list."""
    parts = [str(part) for part in location]
    return next(key for end in range(len(parts), 0, -1) if (key := ".".join(parts[:end])) in setting_keys())


def _shown(key: str, layers: Sequence[Layer]) -> str:
    found = option_of(key)
    if setting_keys()[key].secret or (found and is_secret_option(found[1])):
        return "'***'"
    value = next((layer.values[key] for layer in layers if key in layer.values), setting_keys()[key].default)
    text = _IN_URL.sub("//***@", repr(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _origin(key: str, layers: Sequence[Layer]) -> str:
    origin = next((layer.origins[key] for layer in layers if key in layer.origins), "default")
    return f" ({origin})"
