"""Effects once: a transaction in which a handler's writes and the completion of its job commit together.

The completion is the last statement before COMMIT, and it finds the row only under the token of this claim. A worker that
lost its claim, or a job that another run has completed, rolls back everything: the effect is there exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg_pool import ConnectionPool, PoolTimeout

from pipeline.adapters.postgres.errors import translate
from pipeline.adapters.postgres.session import Connection, Target
from pipeline.core.claims import Settlement
from pipeline.errors import ClaimLost, StoreUnavailable

__all__ = ["PostgresEffects", "connect"]

_COMPLETE = """
    update {schema}.jobs set
        state = 'completed', attempt = %(attempt)s, hop = %(hop)s,
        started_at = to_timestamp(%(started_at)s), finished_at = to_timestamp(%(finished_at)s)
    where job_id = %(job_id)s and token = %(token)s and worker_id = %(worker)s and state = 'running'
"""


class PostgresEffects:
    """Transactions for up to `most` handlers at a time, each on a connection of its own.

    Connections are made when they are needed and checked before they are used again. Handlers see the search path that
    the database gives them, not the one of this package.
    """

    def __init__(
        self, dsn: str, *, schema: str = "pipeline", connect_timeout: float = 5, most: int = 16
    ) -> None:
        target = Target.of(dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=0)
        timeout = connect_timeout
        self._place = target.place
        self._timeout = timeout
        self._complete = sql.SQL(_COMPLETE).format(schema=sql.Identifier(target.schema))
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            kwargs={**target.libpq("handler")},
            min_size=0,
            max_size=most,
            timeout=timeout,
            check=ConnectionPool.check_connection,
            open=False,
        )

    @contextmanager
    def transaction(self, worker_id: str, completion: Callable[[], Settlement]) -> Iterator[Any]:
        """Give a psycopg connection inside a transaction; commit it with the completion at the end of the block.

        `completion` is asked for when the block ends. An error in the block rolls back. Raises `ClaimLost` when the
        claim does not hold any more (all is rolled back), `StoreUnavailable` when Postgres is away or no connection
        came free in time; when that happens at COMMIT the outcome is unknown, and the claim's row will tell.
        """
        try:
            with self._pool_opened().connection() as connection, connection.transaction():
                yield connection
                self._finish(connection, worker_id, completion())
        except PoolTimeout as error:
            raise StoreUnavailable(
                f"{self._place}: no connection for a handler's transaction came free within {self._timeout:g} s"
            ) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if _is_outage(error):
                raise translate(error, self._place) from error
            raise

    def _pool_opened(self) -> ConnectionPool[Connection]:
        self._pool.open()  # harmless when it is open
        return self._pool

    def _finish(self, connection: Connection, worker_id: str, completion: Settlement) -> None:
        values = {**completion._asdict(), "worker": worker_id}
        if connection.execute(self._complete, values).rowcount != 1:
            raise ClaimLost(
                f"job {completion.job_id}: the claim with token {completion.token} does not hold any more; "
                "everything written in this transaction is rolled back"
            )

    def close(self) -> None:
        self._pool.close()


def connect(dsn: str, timeout: float) -> AbstractContextManager[Connection]:
    """A plain connection in autocommit mode, with the search path that the database gives. Raises psycopg's errors."""
    target = Target.of(dsn, schema="pipeline", connect_timeout=timeout, statement_timeout=0)
    return psycopg.connect(**target.libpq("script"), autocommit=True)


def _is_outage(error: psycopg.Error) -> bool:
    """Whether the connection or the server is at fault, rather than a statement of the handler (a deadlock, say)."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
