"""Settings for people to look at, without their secrets."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, SecretStr

from pipeline.config.keys import is_secret_option
from pipeline.config.settings import Settings

__all__ = ["MASK", "mask_dsn", "show"]

MASK = "***"
_PAIR = re.compile(r"\s*([a-zA-Z_]\w*)\s*=\s*('(?:[^'\\]|\\.)*'|(?:\\.|[^\s'\\])*)(?=\s|$)", re.DOTALL)
_SECRET_WORD = re.compile(r"passw|secret|token|passphrase", re.IGNORECASE)


def show(settings: Settings) -> dict[str, Any]:
    """All settings as plain nested values; whatever is or holds a secret is masked."""
    return _plain(settings)


def _plain(model: BaseModel) -> dict[str, Any]:
    return {name: _value(name, getattr(model, name)) for name in type(model).model_fields}


def _value(name: str, value: object) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value)
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return mask_dsn(secret) if name == "dsn" else secret and MASK
    if isinstance(value, dict):
        return {option: MASK if is_secret_option(option) else inner for option, inner in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def mask_dsn(dsn: str) -> str:
    """A Postgres URL or connection string with its passwords masked; what cannot be read is masked as a whole."""
    return _mask_url(dsn) if re.match(r"postgres(ql)?://", dsn) else _mask_pairs(dsn)


def _mask_url(dsn: str) -> str:
    scheme, _, rest = dsn.partition("://")
    user = re.match(r"[^:/?#@]*", rest)
    assert user is not None
    after = rest[user.end() :]
    # A password with a bare '@' or '/' in it is wrong, yet must not show: everything up to the last '@' is masked.
    if after.startswith(":") and "@" in after:
        password, _, after = after.rpartition("@")
        if "?" in password:  # where it ends cannot be told
            return f"{scheme}://{MASK}"
        after = f":{MASK}@{after}"
    place, question, query = after.partition("?")
    parameters = [_mask_parameter(part) for part in query.split("&")]
    return f"{scheme}://{user.group()}{place}{question}{'&'.join(parameters)}"


def _mask_parameter(part: str) -> str:
    name, _, _ = part.partition("=")
    return f"{name}={MASK}" if _SECRET_WORD.search(unquote(name)) else part


def _mask_pairs(dsn: str) -> str:
    shown: list[str] = []
    end = 0
    while pair := _PAIR.match(dsn, end):
        name, value = pair.groups()
        shown.append(f"{name}={MASK if _SECRET_WORD.search(name) else value}")
        end = pair.end()
    return MASK if dsn[end:].strip() else " ".join(shown)
