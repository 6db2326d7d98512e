"""Settings on their way to a child process: plain values, secrets in the clear, so only through a pipe."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, SecretStr

from pipeline.config.settings import Settings

__all__ = ["pack_settings", "unpack_settings"]


def pack_settings(settings: Settings) -> dict[str, Any]:
    """All values, as JSON can carry them."""
    return {name: _plain(value) for name, value in settings}


def unpack_settings(packed: dict[str, Any]) -> Settings:
    """The same settings again; only where each value came from is forgotten."""
    return Settings(**packed)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return {name: _plain(inner) for name, inner in value}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | dict | None) else str(value)
