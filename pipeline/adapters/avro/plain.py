"""Decoded Avro as plain JSON values, for people."""

from __future__ import annotations

import base64
import math
from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Times in ISO 8601, bytes in base64, decimals, UUIDs and floats that JSON lacks as text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
