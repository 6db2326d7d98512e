"""The scenarios, registered by being imported."""

from __future__ import annotations

from tests.faults.rows import kills, servers

__all__ = ["kills", "servers"]
