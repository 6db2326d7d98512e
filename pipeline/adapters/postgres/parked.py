"""Records that were too large for their topic, kept whole on Postgres."""

from __future__ import annotations

import uuid

from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection, Session, Target
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.parked import ParkedRecord

__all__ = ["PostgresParking"]


class PostgresParking:
    """See `pipeline.core.ports.Parking`. One connection, made when a record is parked or asked for: both are rare."""

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
        self._session = Session(target, "parking", {}, on_connect=check_migrated)

    def park(self, parked: ParkedRecord) -> None:
        self._session.run(lambda connection: _park(connection, parked))

    def load(self, job_id: str, hop: int) -> ParkedRecord | None:
        return self._session.run(lambda connection: _load(connection, job_id, hop))

    def close(self) -> None:
        self._session.close()


def _park(connection: Connection, parked: ParkedRecord) -> None:
    job, record = parked.job, parked.record
    values = {
        "job_id": uuid.UUID(job.job_id),
        "hop": job.hop,
        "job_type": job.job_type,
        "tenant": job.tenant,
        "queue": job.queue,
        "reason": parked.reason,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "written_at": record.timestamp,
        "key": record.key,
        "value": record.value,
        "header_names": [name.encode() for name, _ in record.headers],  # text could not hold every name
        "header_values": [value for _, value in record.headers],
    }
    connection.execute(QUERIES["park"], values)


def _load(connection: Connection, job_id: str, hop: int) -> ParkedRecord | None:
    row = connection.execute(
        QUERIES["parked"], {"job_id": uuid.UUID(job_id), "hop": hop}, binary=True
    ).fetchone()
    if row is None:
        return None
    queue, reason, topic, partition, offset, key, value, names, values, written_at = row
    headers = [(name.decode(), value) for name, value in zip(names, values, strict=True)]
    record = Record(topic, partition, offset, key, value, headers, written_at)
    job = parse_job(record, queue=queue).job
    return ParkedRecord(job, record, reason)
