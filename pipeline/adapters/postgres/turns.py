"""Transactions of which each has a first part that waits for nobody, and a second one that comes in order.

The second part, and the commit, of one overlap with the first part of the next: on two connections, and two threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import TypeVar

from pipeline.adapters.postgres.session import Connection, Session
from pipeline.errors import StoreUnavailable

__all__ = ["Turns"]

T = TypeVar("T")


class Turns:
    """For one thread; its own threads end with `close`."""

    def __init__(self, make_session: Callable[[], Session]) -> None:
        self._sessions = (make_session(), make_session())
        self._next: Iterator[Session] = cycle(self._sessions)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="turns")
        self._under_way: Future[None] | None = None

    def take(self, first: Callable[[Connection], T], second: Callable[[Connection, T], None]) -> None:
        """Run `first` in a transaction, and return; `second`, with what it gave, and the commit follow when the turn before is over.

        Raises what `first` raises, and `StoreUnavailable`, also for the turn before. A turn whose forerunner failed fails, too,
        with the same.
        """
        if self.ended:
            self.finish()
        before, ready = self._under_way, threading.Event()

        def turn(connection: Connection) -> None:
            if ready.is_set():  # the caller went on: what `first` did cannot be done again beside it
                raise StoreUnavailable("Postgres undid what others had locked as well; begin again")
            with connection.transaction():
                given = first(connection)
                ready.set()
                if before is not None:
                    before.result()
                second(connection, given)

        turned = self._threads.submit(next(self._next).run, turn)
        turned.add_done_callback(lambda _: ready.set())
        self._under_way = turned
        ready.wait()
        if turned.done():
            if before is not None:
                before.exception()  # waits for it: nothing is under way when this raises
            self.finish()

    @property
    def ended(self) -> bool:
        """Whether nothing is under way."""
        return self._under_way is None or self._under_way.done()

    def finish(self) -> None:
        """Wait for the last turn. Raises what it met, once."""
        last, self._under_way = self._under_way, None
        if last is not None:
            last.result()

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._threads.shutdown()
