"""What a handler's transaction means for its run, in plain handlers and in coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from pipeline.core.claims import Settlement
from pipeline.core.clock import SystemClock
from pipeline.core.state import JobState
from pipeline.errors import ClaimLost, ConfigError
from pipeline.runtime.context import Context
from pipeline.runtime.contexts import Contexts
from pipeline.runtime.delivery import Delivery
from tests.unit.runtime_parts import delivery_of, new_job, record_of


class Effects:
    """Notes the completions that were committed. `refuse`: the claim is lost. A commit waits for `gate` if there is one."""

    def __init__(self, *, refuse: bool = False, gate: asyncio.Event | None = None) -> None:
        self.committed: list[Settlement] = []
        self._refuse = refuse
        self._gate = gate

    @contextmanager
    def transaction(self, worker_id: str, completion: Callable[[], Settlement]) -> Iterator[Any]:
        with suppress(psycopg.Rollback):
            yield worker_id
            self._finish(completion())

    @asynccontextmanager
    async def async_transaction(
        self, worker_id: str, completion: Callable[[], Settlement]
    ) -> AsyncIterator[Any]:
        with suppress(psycopg.Rollback):
            yield worker_id
            if self._gate:
                await self._gate.wait()
            self._finish(completion())

    def _finish(self, completion: Settlement) -> None:
        if self._refuse:
            raise ClaimLost("lost")
        self.committed.append(completion)

    def close(self) -> None:
        pass


def run_of(effects: Effects) -> tuple[Delivery, Context]:
    """A delivery that was claimed with token 7, and its context."""
    delivery = delivery_of(record_of(new_job()))
    delivery.token = 7
    contexts = Contexts(worker_id="worker-1", effects=effects, alive=lambda: True, clock=SystemClock())
    return delivery, contexts.of(delivery)


def test_a_block_that_ends_well_completes_the_job_by_its_token() -> None:
    effects = Effects()
    delivery, context = run_of(effects)
    with context.transaction() as transaction:
        assert transaction == "worker-1"
        assert not delivery.committed
    assert delivery.committed
    assert [(end.token, end.state) for end in effects.committed] == [(7, JobState.COMPLETED)]


def test_a_coroutine_has_the_same_by_async_with() -> None:
    effects = Effects()
    delivery, context = run_of(effects)

    async def handle() -> None:
        async with context.transaction() as transaction:
            assert transaction == "worker-1"
            assert not delivery.committed

    asyncio.run(handle())
    assert delivery.committed
    assert [(end.token, end.state) for end in effects.committed] == [(7, JobState.COMPLETED)]


@pytest.mark.parametrize("error", [ValueError("no"), psycopg.Rollback()], ids=["error", "rollback"])
def test_a_block_that_is_rolled_back_completes_nothing(error: Exception) -> None:
    effects = Effects()
    for entered in (_plain, _awaited):
        delivery, context = run_of(effects)
        with suppress(ValueError):
            entered(context, error)
        assert not delivery.committed
    assert effects.committed == []


def test_a_lost_claim_is_told_and_completes_nothing() -> None:
    for entered in (_plain, _awaited):
        delivery, context = run_of(Effects(refuse=True))
        with pytest.raises(ClaimLost):
            entered(context, None)
        assert not delivery.committed


def _plain(context: Context, error: Exception | None) -> None:
    with context.transaction():
        if error:
            raise error


def _awaited(context: Context, error: Exception | None) -> None:
    async def handle() -> None:
        async with context.transaction():
            if error:
                raise error

    asyncio.run(handle())


def test_a_coroutine_that_would_block_its_loop_is_told_what_to_write() -> None:
    _, context = run_of(Effects())

    async def handle() -> None:
        with context.transaction():
            pass

    with pytest.raises(ConfigError, match="allowed there: async with"):
        asyncio.run(handle())


def test_a_coroutine_that_is_cancelled_at_its_commit_has_committed() -> None:
    async def scenario() -> tuple[bool, list[Settlement]]:
        gate = asyncio.Event()
        effects = Effects(gate=gate)
        delivery, context = run_of(effects)

        async def handle() -> None:
            async with context.transaction():
                pass

        task = asyncio.create_task(handle())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return delivery.committed, effects.committed

    committed, completions = asyncio.run(scenario())
    assert committed
    assert len(completions) == 1
