"""Every setting by its dotted key: what the loader checks names against and what the documentation is made from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from pipeline.config.settings import Settings

__all__ = ["ENV_PREFIX", "SettingKey", "is_secret_option", "near_miss", "option_of", "setting_keys"]

ENV_PREFIX = "PIPELINE_"
_SECRET_OPTION = re.compile(
    r"passw|passphrase|secret|credential|private\.key|ssl[._]key($|[._]pem)|oauthbearer\.config|jaas|token$"
)


class SettingKey(NamedTuple):
    """One setting. `options` tells that it is a dict of librdkafka keys, whose entries are keys of their own."""

    key: str
    env: str
    default: object
    allowed: str
    meaning: str
    secret: bool
    options: bool


@cache
def setting_keys() -> dict[str, SettingKey]:
    """All settings by dotted key, in the order in which they are declared."""
    return {setting.key: setting for setting in _walk(Settings, "")}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SettingKey]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield _describe(f"{prefix}{name}", field)


def _describe(key: str, field: FieldInfo) -> SettingKey:
    return SettingKey(
        key=key,
        env=ENV_PREFIX + key.replace(".", "__").upper(),
        default=field.default,
        allowed=_allowed(field),
        meaning=field.description or "",
        secret=field.annotation is SecretStr,
        options=get_origin(field.annotation) is dict,
    )


def _allowed(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "allowed" in extra:
        return str(extra["allowed"])
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(field.annotation))
    if field.annotation is bool:
        return "true or false"
    if field.annotation in (int, float):
        return _range(field)
    return "text"


def _range(field: FieldInfo) -> str:
    kind = "a whole number" if field.annotation is int else "a number"
    least = next(item.ge for item in field.metadata if isinstance(item, Ge))
    most = next(item.le for item in field.metadata if isinstance(item, Le))
    return f"{kind} from {least} to {most}"


def option_of(key: str) -> tuple[SettingKey, str] | None:
    """Split `kafka.options.sasl.password` into its setting and `sasl.password`; None for any other key."""
    for setting in setting_keys().values():
        if setting.options and key.startswith(f"{setting.key}.") and not key.endswith("."):
            return setting, key[len(setting.key) + 1 :]
    return None


def is_secret_option(name: str) -> bool:
    """Whether the value of a librdkafka key must not be shown."""
    return bool(_SECRET_OPTION.search(name.lower()))


def near_miss(name: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist; empty when nothing is like it."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
