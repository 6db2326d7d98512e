"""What every section of the settings shares: how values are read, and the error for two settings that clash."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from pipeline.errors import ConfigError

__all__ = [
    "Clash",
    "Names",
    "Numbers",
    "Options",
    "Section",
    "allowed",
    "checked_by",
    "option_text",
    "read_options",
]


class Clash(ValueError):
    """Two settings that are right alone and wrong together. `key` is the one to blame first."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key} is {value!r}; allowed: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


class Section(BaseModel):
    """A group of settings: frozen, and closed to names that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_numbers(cls, value: object, info: ValidationInfo) -> object:
        # Python takes True for 1, so `concurrency = true` would mean one thread.
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool and "dict" not in str(field.annotation):
            raise ValueError("a boolean")
        return value


def allowed(text: str) -> JsonDict:
    """For `json_schema_extra`: what a setting may be, where its type and bounds do not say it."""
    return {"allowed": text}


def checked_by(check: Callable[[str, str], str], key: str, value: str) -> str:
    """Use a check of the core, which raises `ConfigError`, where pydantic wants a `ValueError`."""
    try:
        return check(key, value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _split(value: object) -> object:
    """A list may be written as JSON or with commas, where there is only text: in the environment and in flags."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return _from_json(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def _from_json(text: str) -> object:
    try:
        return json.loads(text)  # its own error is a ValueError
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_options(value: object) -> dict[str, str]:
    """Options for librdkafka, given as a table, a JSON object or `key=value,key=value`. Raises `ValueError`."""
    if isinstance(value, Mapping):
        return dict(_flatten(value, ""))
    if not isinstance(value, str):
        raise ValueError("not a table")  # noqa: TRY004 - pydantic understands a ValueError
    text = value.strip()
    if text.startswith("{"):
        return read_options(_from_json(text))
    pairs = [part.partition("=") for part in _NEXT_OPTION.split(text) if part.strip()]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError("not key=value")
    return {name.strip(): setting for name, _, setting in pairs}


# A comma inside a value is no separator: `mechanisms=a,b,ssl.ca.location=/x` has two options.
_NEXT_OPTION = re.compile(r",(?=\s*[a-z0-9_.]+=)")


def _flatten(value: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    # TOML reads `security.protocol = "SSL"` as a table in a table: the names are joined again.
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flatten(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", option_text(inner)


def option_text(value: object) -> str:
    """The value of one option, as librdkafka takes it. Raises `ValueError`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("not text, a number or a boolean")


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_split)]
Options = Annotated[
    dict[str, str],
    BeforeValidator(read_options),
    # Passwords may be among them: kept out of every repr.
    Field(repr=False, json_schema_extra={"allowed": "keys of librdkafka with their values"}),
]
