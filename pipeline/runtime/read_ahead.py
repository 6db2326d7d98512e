"""Reads ahead on a thread of its own, while whoever wants the items works on the ones before."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import Empty, Queue
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

__all__ = ["ReadAhead"]

T = TypeVar("T")


class _End(NamedTuple):
    """Nothing follows, or what ended the reading."""

    error: BaseException | None


class ReadAhead(Generic[T]):
    """The items of `source`, one of them ready while the one before is worked on.

    What `source` raises is raised where its item would have come. It is used, and closed, by the thread alone. To leave the block
    ends the reading.
    """

    def __init__(self, source: Generator[T]) -> None:
        self._source = source
        self._ready: Queue[T | _End] = Queue(maxsize=1)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        while self._thread.is_alive():
            self._make_room()
            self._thread.join(0.01)

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._source:
                self._ready.put(item)
                if self._left.is_set():
                    break
        except BaseException as raised:  # noqa: BLE001 - raised again where the items are taken
            error = raised
        finally:
            self._source.close()
            self._ready.put(_End(error))

    def _make_room(self) -> None:
        try:
            self._ready.get_nowait()
        except Empty:
            return
