"""Waiting for a condition, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]

_STEP = 0.05


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    timeout: float = 40.0,
    context: Callable[[], str] = lambda: "",
) -> None:
    """Return when `condition` is true. Fails the test after `timeout` seconds, with what `context` tells then."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{timeout:g} s passed, but not yet: {what}\n{context()}"
        time.sleep(_STEP)
