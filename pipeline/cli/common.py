"""What the commands share: settings from the global flags, and an application found by its name."""

from __future__ import annotations

import importlib
import sys
from functools import cached_property
from pathlib import Path

import click

from pipeline.app import Pipeline
from pipeline.config import Settings, load_settings
from pipeline.errors import ConfigError
from pipeline.logs import setup_logging

__all__ = ["Session", "app_option", "pass_session"]


class Session:
    """One run of the command line. Settings are read when a command first asks for them."""

    def __init__(self, config_file: Path | None, assignments: tuple[str, ...]) -> None:
        self._config_file = config_file
        self._assignments = assignments

    @cached_property
    def settings(self) -> Settings:
        """Raises `ConfigError`."""
        overrides: dict[str, object] = {}
        for assignment in self._assignments:
            key, equals, value = assignment.partition("=")
            if not equals:
                raise ConfigError(f"--set is {assignment!r}; allowed: KEY=VALUE, such as worker.lease=30")
            overrides[key] = value
        return load_settings(overrides, config_file=self._config_file)

    @property
    def flags(self) -> list[str]:
        """What to give to another process of this command line, so that it has the same settings."""
        config = ["--config", str(self._config_file)] if self._config_file else []
        return config + [word for assignment in self._assignments for word in ("--set", assignment)]

    def log_to_stderr(self) -> None:
        setup_logging(self.settings.log.level, self.settings.log.format)

    def app(self, target: str | None) -> Pipeline:
        """The application at `module:attribute`, on these settings; without a target, one that declares nothing."""
        found = Pipeline() if target is None else load_app(target)
        found.configure(self.settings)
        return found


pass_session = click.make_pass_decorator(Session)

app_option = click.option(
    "--app", "target", metavar="MODULE:APP", envvar="PIPELINE_APP", help="Where the job types are declared."
)


def load_app(target: str) -> Pipeline:
    """Import `module:attribute` (the attribute is `app` if none is named), also from the working directory.

    Raises `ConfigError` that says what could not be found.
    """
    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` does; handlers may import more from there later
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the user's own module needs
        raise ConfigError(f"application is {target!r}; there is no module {error.name!r}") from error
    found = getattr(module, attribute or "app", None)
    if not isinstance(found, Pipeline):
        raise ConfigError(
            f"application is {target!r}; {attribute or 'app'!r} in {module_name} is no Pipeline"
        )
    return found
