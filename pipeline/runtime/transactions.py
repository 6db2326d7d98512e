"""What `ctx.transaction()` gives: for `with` in a plain handler, for `async with` in a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from pipeline.errors import ConfigError

__all__ = ["Transaction"]

T = TypeVar("T")


class Transaction:
    """For one block. Nothing is done before it is entered."""

    def __init__(
        self,
        plain: Callable[[], AbstractContextManager[Any]],
        awaited: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        self._new_plain = plain
        self._new_awaited = awaited

    def __enter__(self) -> Any:
        """Raises `ConfigError` on the thread of an event loop: waiting for Postgres, it would hold up every coroutine."""
        if _on_a_loop():
            raise ConfigError(
                "ctx.transaction() was entered by 'with' in a coroutine; allowed there: async with ctx.transaction() as tx"
            )
        self._plain = self._new_plain()
        return self._plain.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._plain.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        self._awaited = self._new_awaited()
        return await self._awaited.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Not to be cancelled: with a COMMIT on its way nobody would know whether the job was completed."""
        return await _to_its_end(self._awaited.__aexit__(kind, error, traceback))


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _to_its_end(body: Coroutine[Any, Any, T]) -> T:
    """Await `body` to its end whatever happens; a cancellation meanwhile is raised after that."""
    task = asyncio.ensure_future(body)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # or asyncio would say that nobody looked
        raise cancelled
    return task.result()
