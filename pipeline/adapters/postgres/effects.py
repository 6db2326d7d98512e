"""Effects once: a transaction in which a handler's writes and the completion of its job commit together.

The completion is the last statement before COMMIT, and it finds the row only under the token of this claim. A worker that
lost its claim, or a job that another run has completed, rolls back everything: the effect is there exactly once.

The two are sent together. A worker that is frozen or cut off between them would keep the row of its job locked, and every
claim with that job in it waiting; so might one that is frozen inside the block with rows of its own, but only for
`idle_timeout` seconds: then the server ends the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from pipeline.adapters.postgres.async_effects import AsyncTransactions
from pipeline.adapters.postgres.completing import Completing
from pipeline.adapters.postgres.session import Connection, Target
from pipeline.core.claims import Settlement

__all__ = ["PostgresEffects", "connect"]


class PostgresEffects:
    """Transactions for up to `most` handlers at a time, each on a connection of its own; as many again on an event loop.

    Connections are made when they are needed and checked before they are used again. Handlers see the search path that
    the database gives them, not the one of this package.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "pipeline",
        connect_timeout: float = 5,
        idle_timeout: float = 60,
        most: int = 16,
    ) -> None:
        target = Target.of(dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=0)
        limits = {"idle_in_transaction_session_timeout": f"{idle_timeout * 1000:.0f}"}
        parameters = target.libpq("handler", limits)
        self._completing = Completing(target)
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            kwargs=parameters,
            min_size=0,
            max_size=most,
            timeout=connect_timeout,
            check=ConnectionPool.check_connection,
            open=False,
        )
        self._on_loop = AsyncTransactions(self._completing, parameters, timeout=connect_timeout, most=most)

    @contextmanager
    def transaction(self, worker_id: str, completion: Callable[[], Settlement]) -> Iterator[Any]:
        """Give a psycopg connection inside a transaction; commit it with the completion at the end of the block.

        `completion` is asked for when the block ends. An error in the block rolls back. Raises `ClaimLost` when the
        claim does not hold any more (all is rolled back), `StoreUnavailable` when Postgres is away or no connection
        came free in time; when that happens at COMMIT the outcome is unknown, and the claim's row will tell.
        """
        with (
            self._completing.translated() as ending,
            self._pool_opened().connection() as connection,
            ExitStack() as together,
            connection.transaction(),
        ):
            yield connection
            together.enter_context(connection.pipeline())
            ending.send(connection.execute, worker_id, completion())

    def async_transaction(
        self, worker_id: str, completion: Callable[[], Settlement]
    ) -> AbstractAsyncContextManager[Any]:
        """The same on the running event loop, with an `AsyncConnection`. All callers share one loop."""
        return self._on_loop.transaction(worker_id, completion)

    def _pool_opened(self) -> ConnectionPool[Connection]:
        self._pool.open()  # harmless when it is open
        return self._pool

    def close(self) -> None:
        """Not from the thread of the event loop."""
        self._pool.close()
        self._on_loop.close()


def connect(dsn: str, timeout: float) -> AbstractContextManager[Connection]:
    """A plain connection in autocommit mode, with the search path that the database gives. Raises psycopg's errors."""
    target = Target.of(dsn, schema="pipeline", connect_timeout=timeout, statement_timeout=0)
    return psycopg.connect(**target.libpq("script"), autocommit=True)
