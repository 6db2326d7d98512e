"""The page docs/configuration.md, made from the settings themselves: `python -m pipeline.config.docs > docs/configuration.md`."""

from __future__ import annotations

import json
from itertools import groupby

from pydantic import SecretStr

from pipeline.config.keys import SettingKey, setting_keys

__all__ = ["configuration_page"]

HEAD = """\
# Configuration

Made from the settings by `python -m pipeline.config.docs`; a test compares.

A value comes from the first of these that has it:

1. a flag, `pipeline --set worker.lease=30 ...`;
2. the environment, `PIPELINE_WORKER__LEASE=30` (two underscores between section and name);
3. the file: `--config FILE`, else the one that `PIPELINE_CONFIG` names, else `pipeline.toml` in the working directory;
4. the default.

`pipeline config show` prints every setting with its source and without its secrets. A value that cannot be right is
refused, and so is a name that does not exist, be it in a flag, in the file or in a variable that starts with `PIPELINE_`.
All durations are in seconds.

- **Lists** have commas (`PIPELINE_QUEUES=default,gpu`) or are JSON; in the file they are TOML lists.
- **Options of librdkafka** are given one by one (`PIPELINE_KAFKA__OPTIONS__SASL_USERNAME=me`, where `_` stands for the dot,
  or `--set kafka.options.sasl.username=me`), together (`PIPELINE_KAFKA__OPTIONS=sasl.username=me,client.id=x`, or JSON), or
  as a table of the file. They are merged one by one. Those that the promises of the pipeline rest on cannot be changed.
- **Secrets** (`postgres.dsn`, `schema_registry.password`, and options such as `sasl.password`) may lie in a file of their own:
  `PIPELINE_POSTGRES__DSN_FILE=/run/secrets/dsn`, `PIPELINE_KAFKA__OPTIONS__SASL_PASSWORD_FILE=...`.
"""


def configuration_page() -> str:
    """The whole page."""
    sections = groupby(setting_keys().values(), key=lambda setting: setting.key.rpartition(".")[0])
    return HEAD + "".join(_section(name, list(settings)) for name, settings in sections)


def _section(name: str, settings: list[SettingKey]) -> str:
    title = f"`{name}`" if name else "General"
    rows = "".join(_row(setting) for setting in settings)
    return f"\n## {title}\n\n| key | variable | default | allowed | meaning |\n|---|---|---|---|---|\n{rows}"


def _row(setting: SettingKey) -> str:
    cells = (
        f"`{setting.key}`",
        f"`{setting.env}`",
        _default(setting.default),
        setting.allowed,
        setting.meaning,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(value: object) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", {}):
        return "none"
    return f"`{json.dumps(value) if isinstance(value, bool | tuple) else value}`"


if __name__ == "__main__":
    print(configuration_page(), end="")
