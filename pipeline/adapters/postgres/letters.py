"""What the dead-letter desk asks of the jobs table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.adapters.postgres.claiming import read_rows
from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.session import FIXED_PLANS, Session, Target
from pipeline.core.claims import Row

__all__ = ["PostgresLetterStates"]


class PostgresLetterStates:
    """Rows of jobs, many at a time. Making one does not connect; raises `ConfigError` for a wrong DSN or schema."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "pipeline",
        connect_timeout: float = 5,
        statement_timeout: float = 30,
    ) -> None:
        target = Target.of(
            dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=statement_timeout
        )
        settings = {**FIXED_PLANS, "default_transaction_read_only": "on"}
        self._session = Session(target, "desk", settings, on_connect=check_migrated)

    def rows(self, job_ids: Sequence[str]) -> Mapping[str, Row]:
        """The rows of those jobs that have one. Raises `StoreUnavailable`, `DatabaseNotMigrated`."""
        found = self._session.run(lambda connection: read_rows(connection, job_ids))
        return {job_id: row for job_id, (row, _) in found.items()}

    def close(self) -> None:
        self._session.close()
