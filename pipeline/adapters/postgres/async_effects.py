"""The same as `effects` for coroutines: transactions on the connections of one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from pipeline.adapters.postgres.completing import Completing
from pipeline.core.claims import Settlement

__all__ = ["AsyncTransactions"]

CLOSING_SECONDS = 5.0

log = logging.getLogger("pipeline.store")

_Connection = AsyncConnection[tuple[Any, ...]]


class AsyncTransactions:
    """Belongs to the loop that first asked for a transaction; only `close` is called from elsewhere.

    A handler waits as long as it must while `most` others have a connection: there are more coroutines than that.
    """

    def __init__(
        self, completing: Completing, parameters: Mapping[str, Any], *, timeout: float, most: int
    ) -> None:
        self._completing = completing
        self._places = asyncio.Semaphore(most)
        self._pool: AsyncConnectionPool[_Connection] = AsyncConnectionPool(
            kwargs=dict(parameters),
            min_size=0,
            max_size=most,
            timeout=timeout,
            check=AsyncConnectionPool.check_connection,
            open=False,
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def transaction(self, worker_id: str, completion: Callable[[], Settlement]) -> AsyncIterator[Any]:
        """See `PostgresEffects.transaction`."""
        with self._completing.translated() as ending:
            async with (
                self._places,
                (await self._opened()).connection() as connection,
                AsyncExitStack() as together,
                connection.transaction(),
            ):
                yield connection
                await together.enter_async_context(connection.pipeline())
                await ending.send(connection.execute, worker_id, completion())

    async def _opened(self) -> AsyncConnectionPool[_Connection]:
        self._loop = asyncio.get_running_loop()
        await self._pool.open()  # harmless when it is open
        return self._pool

    def close(self) -> None:
        """Close the connections, as far as their loop lets us."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        closing = self._pool.close(CLOSING_SECONDS)
        if not loop.is_running():
            loop.run_until_complete(closing)
            return
        try:
            asyncio.run_coroutine_threadsafe(closing, loop).result(CLOSING_SECONDS)
        except TimeoutError:
            log.warning(
                "connections of async handlers are left open: the event loop does not answer",
                extra={"action": "effects_left_open"},
            )
