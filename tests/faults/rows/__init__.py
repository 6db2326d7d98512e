"""The scenarios, registered by being imported."""

from __future__ import annotations

from tests.faults.rows import (
    clocks,
    cluster,
    disk,
    handlers,
    kills,
    logs,
    postgres,
    records,
    replays,
    servers,
    stops,
    transactions,
)

__all__ = [
    "clocks",
    "cluster",
    "disk",
    "handlers",
    "kills",
    "logs",
    "postgres",
    "records",
    "replays",
    "servers",
    "stops",
    "transactions",
]
