"""Postgres: the job store and its migrations. The only package that imports psycopg."""

from __future__ import annotations

from pipeline.adapters.postgres.migrate import (
    MigrationState,
    MigrationStatus,
    check_migrated,
    migrate,
    status,
)
from pipeline.adapters.postgres.store import PostgresJobStore

__all__ = ["MigrationState", "MigrationStatus", "PostgresJobStore", "check_migrated", "migrate", "status"]
