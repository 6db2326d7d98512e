"""The inside of a child process: it runs one job at a time, told by its worker through a pipe.

The main thread runs handlers, as a script would. A second thread reads the pipe, so that the end of the worker is noticed
while a handler runs: a child never outlives its worker.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from errno import ENOMEM
from multiprocessing.connection import Connection
from typing import Any

from pipeline.core.claims import Settlement
from pipeline.core.clock import SystemClock
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Outcome, describe_failure
from pipeline.core.ports import Codec, Effects
from pipeline.runtime.contexts import Contexts
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.executors.base import (
    SUCCEEDED,
    outcome_after,
    refuse_unstarted,
    timed_out,
    to_call,
)
from pipeline.runtime.executors.guards import end_family
from pipeline.runtime.executors.wire import JobOrder, Kind, pack, pack_outcome, unpack, unpack_job
from pipeline.runtime.handlers import ASYNC, Registry
from pipeline.runtime.opening import decode_payload, find_handler
from pipeline.runtime.time import StoreClock

__all__ = ["ChildRunner", "Link"]

LEAVING_SECONDS = 5.0  # for what a user's module does at exit


class Link:
    """The child's end of the pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._orders: queue.SimpleQueue[JobOrder | None] = queue.SimpleQueue()
        self._busy = True  # until it waits for its first job
        self.lease_lost = False

    def hello(self) -> dict[str, Any]:
        """What the worker says first."""
        kind, data = unpack(self._connection.recv_bytes())
        if kind is not Kind.HELLO:
            raise ValueError(f"the worker said {kind.name} first; allowed: HELLO")
        greeting: dict[str, Any] = data
        return greeting

    def listen(self) -> None:
        """From here on end with the worker."""
        threading.Thread(target=self._read, name="pipe", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                kind, data = unpack(self._connection.recv_bytes())
                if kind is Kind.JOB:
                    self._orders.put(unpack_job(data))
                else:
                    self.lease_lost = bool(data)
        except (EOFError, OSError):
            self._leave()

    def _leave(self) -> None:
        if not self._busy:
            self._orders.put(None)
            time.sleep(LEAVING_SECONDS)
        end_family()

    def next_order(self) -> JobOrder | None:
        """Wait for a job; None when the worker has closed the pipe."""
        self._busy = False
        order = self._orders.get()
        self._busy = order is not None
        return order

    def say(self, message: bytes) -> None:
        with self._sending:
            self._connection.send_bytes(message)


class _ToldEffects:
    """Effects that tell the worker of each commit, before the handler goes on: it may still kill the process."""

    def __init__(self, inner: Effects, link: Link) -> None:
        self._inner = inner
        self._link = link

    @contextmanager
    def transaction(self, worker_id: str, completion: Callable[[], Settlement]) -> Iterator[Any]:
        kept = False
        with self._inner.transaction(worker_id, completion) as opened:
            yield opened
            kept = True
        if kept:
            self._tell()

    @asynccontextmanager
    async def async_transaction(
        self, worker_id: str, completion: Callable[[], Settlement]
    ) -> AsyncIterator[Any]:
        kept = False
        async with self._inner.async_transaction(worker_id, completion) as opened:
            yield opened
            kept = True
        if kept:
            self._tell()

    def _tell(self) -> None:
        self._link.say(pack(Kind.COMMITTED))

    def close(self) -> None:
        self._inner.close()


class ChildRunner:
    """Runs what comes through the link until it is closed. `limited`: allocations fail beyond a limit."""

    def __init__(
        self, link: Link, *, worker_id: str, registry: Registry, codec: Codec, effects: Effects, limited: bool
    ) -> None:
        self._link = link
        self._registry = registry
        self._codec = codec
        self._limited = limited
        self._loop = asyncio.Runner()
        self._clock = StoreClock(SystemClock())
        self._effects = _ToldEffects(effects, link)
        self._contexts = Contexts(
            worker_id=worker_id,
            effects=self._effects,
            alive=lambda: not link.lease_lost,
            clock=self._clock,
        )

    def serve(self) -> None:
        """Say that this child is ready, then run jobs until the worker closes the pipe."""
        self._link.say(pack(Kind.READY, os.getpid()))
        while (order := self._link.next_order()) is not None:
            self._clock.sync(order.now, asked_at=order.at, answered_at=order.at)
            self._link.say(pack(Kind.STARTED))
            self._link.say(self._run(order))
        self._effects.close()  # which may have connections that belong to the loop
        self._loop.close()

    def _run(self, order: JobOrder) -> bytes:
        delivery = _delivery(order)
        outcome = find_handler(delivery, self._registry)
        if outcome is None:
            outcome = decode_payload(delivery, self._codec)
        if outcome is not None:
            return pack_outcome(outcome)
        try:
            return pack_outcome(self._call(delivery))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            if self._limited and not delivery.committed and _wants_memory(error):
                return pack(Kind.EXHAUSTED, describe_failure(error))
            return pack_outcome(outcome_after(delivery, error))

    def _call(self, delivery: Delivery) -> Outcome:
        handler, payload = to_call(delivery)
        context = self._contexts.of(delivery)
        if handler.lane == ASYNC:
            # One loop for all: what a handler keeps for the next job may belong to the loop.
            return self._loop.run(_in_time(delivery, handler.call(payload, context)))
        refuse_unstarted(handler.call(payload, context))
        return SUCCEEDED


def _wants_memory(error: BaseException | None) -> bool:
    """Whether memory ran out somewhere on the way to this error: cleaning up without memory raises anything."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == ENOMEM):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


async def _in_time(delivery: Delivery, running: Awaitable[Any]) -> Outcome:
    """Cancelled at the time limit, as in a worker; the worker kills what does not mind that."""
    handler, _ = to_call(delivery)
    limit = handler.job_type.timeout
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            await running
    except TimeoutError:
        if deadline.expired() and not delivery.committed:
            return timed_out(delivery, limit or 0.0)
        raise
    return SUCCEEDED


def _delivery(order: JobOrder) -> Delivery:
    source = order.source
    record = Record(*source, None, order.value, [], 0.0)
    delivery = Delivery(record, Partition(source.topic, source.partition), order.job, "")
    delivery.token = order.token
    return delivery
