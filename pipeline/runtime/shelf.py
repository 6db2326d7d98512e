"""A buffer with a shelf: for jobs that wait for something to happen rather than for a time.

What lies on the shelf is neither ready nor in flight. It counts as set aside, so that it does not fill the room of other jobs, and
it goes with its partition like everything else that has not started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from pipeline.core.breaker import BreakerKey
from pipeline.core.offsets import Partition
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.delivery import Delivery

__all__ = ["Shelf", "ShelvingBuffer"]


class Shelf:
    """Deliveries in rows, by what they wait for, in the order they came. Not thread-safe: its owner guards it."""

    def __init__(self) -> None:
        self._rows: dict[BreakerKey, deque[Delivery]] = {}

    def put(self, key: BreakerKey, delivery: Delivery) -> None:
        self._rows.setdefault(key, deque()).append(delivery)

    def take(self, key: BreakerKey, most: float) -> list[Delivery]:
        """The first so many of a row; the number may be infinite."""
        row = self._rows.get(key, deque())
        taken: list[Delivery] = []
        while row and len(taken) < most:
            taken.append(row.popleft())
        if key in self._rows and not row:
            del self._rows[key]
        return taken

    def take_out(self, wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """The wanted ones of all rows; each is asked about once."""
        taken: list[Delivery] = []
        for key, row in list(self._rows.items()):
            left: deque[Delivery] = deque()
            for delivery in row:
                (taken if wanted(delivery) else left).append(delivery)
            if left:
                self._rows[key] = left
            else:
                del self._rows[key]
        return taken

    def sizes(self) -> dict[BreakerKey, int]:
        return {key: len(row) for key, row in self._rows.items()}


class ShelvingBuffer(Buffer):
    """See the module."""

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings)
        self._shelf = Shelf()

    def shelve(self, key: BreakerKey, deliveries: Iterable[Delivery]) -> None:
        """Let these, which were taken and not claimed, wait out of the way until they are taken off."""
        with self._changed:
            for delivery in deliveries:
                if self._return(delivery):
                    self._held.set_aside(delivery, aside=True)
                    self._shelf.put(key, delivery)
            self._changed.notify_all()

    def unshelve(self, key: BreakerKey, most: float) -> list[Delivery]:
        """Make the first so many ready again, and give them; the number may be infinite."""
        with self._changed:
            return self._made_ready(self._shelf.take(key, most))

    def unshelve_from(self, partitions: Collection[Partition]) -> list[Delivery]:
        """The same for all that came from these partitions."""
        with self._changed:
            return self._made_ready(self._shelf.take_out(lambda delivery: delivery.partition in partitions))

    def shelved(self) -> dict[BreakerKey, int]:
        """How many wait on the shelf, by what they wait for."""
        with self._changed:
            return self._shelf.sizes()

    def withdraw(self, partitions: Iterable[Partition]) -> None:
        """See `Buffer.withdraw`."""
        gone = set(partitions)
        super().withdraw(gone)
        with self._changed:
            self._shelf.take_out(lambda delivery: not self._keep(delivery, gone))

    def _made_ready(self, deliveries: list[Delivery]) -> list[Delivery]:
        for delivery in deliveries:
            self._held.set_aside(delivery, aside=False)
            self._ready[delivery.lane].append(delivery)
        self._changed.notify_all()
        return deliveries
