"""The job store on Postgres: `pipeline.core.ports.JobStore`, and what people ask of it.

Claims, settlements, heartbeats and reads have a connection each, so none waits for another. A connection is made at
the first call that needs it, and again after it broke; the broken call raises `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.adapters.postgres import claiming, reading, settling
from pipeline.adapters.postgres.arrays import texts
from pipeline.adapters.postgres.letter_reading import open_count
from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import FIXED_PLANS, Connection, Session, Target
from pipeline.core.claims import Claim, ClaimRequest, Settled, Settlement
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import JobStory, WorkerStory

__all__ = ["PostgresJobStore"]

# None of our transactions waits for anything but the server. One that does is of a frozen worker, and may hold locks.
_IDLE_LIMIT = {"idle_in_transaction_session_timeout": "10s"}


class PostgresJobStore:
    """See `pipeline.core.ports.JobStore`. Making one does not connect; the first call checks the migrations.

    Job ids are UUIDs as `str(uuid)` writes them. Times are seconds. Calls raise `StoreUnavailable`, the first ones also
    `DatabaseNotMigrated`; making a store raises `ConfigError`.
    """

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
        # A claim that is lost when Postgres crashes is only a redelivery, so it need not wait for the disk.
        self._claims = self._session(target, "claim", {**FIXED_PLANS, "synchronous_commit": "off"})
        self._settlements = self._session(target, "settle", {**FIXED_PLANS, "synchronous_commit": "on"})
        self._heartbeats = self._session(target, "heartbeat", {})
        self._reads = self._session(target, "read", {"default_transaction_read_only": "on"})
        self._checked = False

    def _session(self, target: Target, role: str, settings: dict[str, str]) -> Session:
        return Session(target, role, {**_IDLE_LIMIT, **settings}, on_connect=self._check)

    def _check(self, connection: Connection) -> None:
        # Once only: a worker that reconnects while a newer release migrates goes on.
        if not self._checked:
            check_migrated(connection)
            self._checked = True

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        return self._claims.run(lambda connection: claiming.claim(connection, worker_id, requests))

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        return self._settlements.run(lambda connection: settling.settle(connection, worker_id, settlements))

    def heartbeat(self, worker: WorkerInfo) -> float:
        values = {
            "worker": worker.worker_id,
            "host": worker.host,
            "pid": worker.pid,
            "queues": texts(worker.queues),
            "lease": worker.lease,
        }
        return self._heartbeats.run(lambda connection: _beat(connection, values))

    def leave(self, worker_id: str) -> None:
        self._heartbeats.run(lambda connection: connection.execute(QUERIES["leave"], {"worker": worker_id}))

    def job(self, job_id: str) -> JobStory | None:
        """The whole story of a job; None when the store knows no such job."""
        return self._reads.run(lambda connection: reading.job(connection, job_id))

    def workers(self) -> list[WorkerStory]:
        """Every start of a worker that is on record, the first one first."""
        return self._reads.run(reading.workers)

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state. Reads all of them: for people, not for every scrape."""
        return self._reads.run(reading.counts)

    def dead_count(self) -> int:
        """How many jobs are dead now. Cheap: reads only those that ever died."""
        return self._reads.run(reading.dead_count)

    def open_letters(self, queue: str) -> int:
        """How many dead letters of a queue wait for an operator. Cheap: reads only those."""
        return self._reads.run(lambda connection: open_count(connection, queue))

    def close(self) -> None:
        for session in (self._claims, self._settlements, self._heartbeats, self._reads):
            session.close()


def _beat(connection: Connection, values: dict[str, object]) -> float:
    row = connection.execute(QUERIES["heartbeat"], values, prepare=True).fetchone()
    assert row is not None
    return float(row[0])
