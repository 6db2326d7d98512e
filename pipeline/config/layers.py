"""Where settings come from: flags, the environment, a file. Each gives one layer: values by dotted key, with origins.

Names are checked here, because whoever mistypes one would otherwise run on the default without ever being told.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.base import option_text, read_options
from pipeline.config.keys import ENV_PREFIX, SettingKey, is_secret_option, near_miss, option_of, setting_keys
from pipeline.errors import ConfigError

__all__ = ["Layer", "env_layer", "file_layer", "flag_layer"]

# Variables of ours that are no settings: which file and application to use, the embedded servers' cache, what tests are told.
_RESERVED = re.compile(r"PIPELINE_(CONFIG|APP|CACHE_DIR)|PIPELINE_(TEST|DEV|EMBEDDED|DEMO|BENCH)_.*")
# Kubernetes adds these for each service whose name starts with "pipeline". Refusing them would stop every pod beside it.
_SERVICE_LINK = re.compile(r".*_SERVICE_HOST|.*_SERVICE_PORT(_.*)?|.*_PORT_\d+_(TCP|UDP|SCTP)(_.*)?")


class Given(NamedTuple):
    """A value as it was written. `name` is how its writer knows it."""

    key: str
    value: object
    name: str


class Layer:
    """What one source gave."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []

    def nested(self) -> dict[str, Any]:
        """The values as the tree of settings wants them; the names of options keep their dots."""
        tree: dict[str, Any] = {}
        for key, value in self.values.items():
            found = option_of(key)
            path = [*found[0].key.split("."), found[1]] if found else key.split(".")
            inner = tree
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = value
        return tree

    def take(self, given: Given, origin: str) -> None:
        """Add a value, or what is wrong with it."""
        try:
            for key, value in _values(given):
                self._add(key, value, origin)
        except ConfigError as error:
            self.problems.append(str(error))

    def _add(self, key: str, value: object, origin: str) -> None:
        if key in self.values:
            raise ConfigError(f"{key} is given twice: by {self.origins[key]} and by {origin}")
        self.values[key] = value
        self.origins[key] = origin


def flag_layer(overrides: Mapping[str, object]) -> Layer:
    """Read `--set key=value` flags."""
    layer = Layer()
    for key, value in overrides.items():
        layer.take(Given(key, value, f"--set {key}"), f"flag --set {key}")
    return layer


def env_layer(environ: Mapping[str, str]) -> Layer:
    """Read PIPELINE_ variables."""
    layer = Layer()
    for name, value in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and not _is_foreign(name, value):
            layer.take(Given(_env_key(name), value, name), f"env {name}")
    return layer


def file_layer(path: Path) -> Layer:
    """Read a TOML file. Raises `ConfigError` when it cannot be read at all."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from None
    layer = Layer()
    for key, value in _leaves(tree, ""):
        layer.take(Given(key, value, f"{key} in {path}"), f"file {path}")
    return layer


def _is_foreign(name: str, value: str) -> bool:
    if _env_key(name) in setting_keys():
        return False
    is_link = _SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and "://" in value)
    return bool(_RESERVED.fullmatch(name) or is_link)


def _env_key(name: str) -> str:
    key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
    found = option_of(key)
    if found is None:
        return key
    # Librdkafka's names have dots and no underscores, variables the other way round.
    option = found[1].removesuffix("_file")
    suffix = "_file" if option != found[1] and is_secret_option(option.replace("_", ".")) else ""
    return f"{found[0].key}.{found[1].removesuffix(suffix).replace('_', '.')}{suffix}"


def _leaves(tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in setting_keys():
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _values(given: Given) -> Iterator[tuple[str, object]]:
    """What a written value stands for: itself, the content of a secret's file, or several options."""
    key = given.key
    setting = setting_keys().get(key)
    if setting is not None:
        yield from _all_options(setting, given) if setting.options else [(key, given.value)]
    elif _is_secret(key.removesuffix("_file")) and key.endswith("_file"):
        yield key.removesuffix("_file"), _read_secret(given)
    elif option_of(key):
        yield key, _one_option(given)
    else:
        raise ConfigError(_unknown(given))


def _is_secret(key: str) -> bool:
    found = option_of(key)
    if found is not None:
        return is_secret_option(found[1])
    return key in setting_keys() and setting_keys()[key].secret


def _read_secret(given: Given) -> str:
    path = Path(str(given.value))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{given.name} names the file {path}, which cannot be read: {error.strerror}"
        ) from None
    except ValueError:
        raise ConfigError(f"{given.name} names the file {path}, which is not UTF-8 text") from None
    return text.rstrip("\r\n")


def _all_options(setting: SettingKey, given: Given) -> list[tuple[str, object]]:
    try:
        options = read_options(given.value)
    except ValueError:
        raise ConfigError(
            f"{given.name} cannot be read; allowed: key=value,key=value, a JSON object or a table, of {setting.allowed}"
        ) from None
    return [(f"{setting.key}.{name}", value) for name, value in options.items()]


def _one_option(given: Given) -> str:
    try:
        return option_text(given.value)
    except ValueError:
        raise ConfigError(f"{given.name} is not text, a number or a boolean") from None


def _unknown(given: Given) -> str:
    keys = setting_keys()
    inside = [key for key in keys if key.startswith(f"{given.key}.")]
    if inside:
        return f"{given.name}: {given.key!r} is a section; allowed: its keys, as {inside[0]}"
    is_env = given.name.startswith(ENV_PREFIX)
    known = [setting.env for setting in keys.values()] if is_env else list(keys)
    return f"{given.name}: there is no such setting{near_miss(given.name if is_env else given.key, known)}"
