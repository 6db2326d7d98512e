"""A thread beside a test, from the start of a block to its end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Background"]


class Background(ABC):
    """Runs `_loop` between `__enter__` and `__exit__`: until `_stopped` is set."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def _loop(self) -> None: ...
