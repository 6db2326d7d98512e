"""The scenarios, registered by being imported."""

from __future__ import annotations

from tests.faults.rows import (
    cluster,
    disk,
    handlers,
    kills,
    logs,
    others,
    postgres,
    records,
    servers,
    stops,
    transactions,
)

__all__ = [
    "cluster",
    "disk",
    "handlers",
    "kills",
    "logs",
    "others",
    "postgres",
    "records",
    "servers",
    "stops",
    "transactions",
]
