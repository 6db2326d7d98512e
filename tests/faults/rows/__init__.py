"""The scenarios, registered by being imported."""

from __future__ import annotations

from tests.faults.rows import handlers, kills, others, postgres, servers, stops

__all__ = ["handlers", "kills", "others", "postgres", "servers", "stops"]
