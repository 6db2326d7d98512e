"""How many jobs of a kind may run at the same time; those beyond wait in the order in which they came."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

__all__ = ["Caps"]

Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")


class Caps(Generic[Kind, Item]):
    """Places by kind; a kind without a limit has as many as are asked for. Not thread-safe: its owner guards it."""

    def __init__(self, limits: Mapping[Kind, int]) -> None:
        self._limits = dict(limits)
        self._taken: Counter[Kind] = Counter()
        self._waiting: dict[Kind, deque[Item]] = {}

    def limited(self, kind: Kind) -> bool:
        return kind in self._limits

    def enter(self, kind: Kind, item: Item) -> bool:
        """Take a place of a limited kind. When none is free, or others wait, the item waits too: False."""
        if self._taken[kind] < self._limits[kind] and not self._waiting.get(kind):
            self._taken[kind] += 1
            return True
        self._waiting.setdefault(kind, deque()).append(item)
        return False

    def leave(self, kind: Kind) -> None:
        """Give a place back."""
        self._taken[kind] -= 1

    def admit(self) -> list[Item]:
        """Take free places for items that wait; give those that got one, per kind in the order in which they came."""
        admitted: list[Item] = []
        for kind, waiting in list(self._waiting.items()):
            while waiting and self._taken[kind] < self._limits[kind]:
                self._taken[kind] += 1
                admitted.append(waiting.popleft())
            if not waiting:
                del self._waiting[kind]
        return admitted

    def keep(self, wanted: Callable[[Item], bool]) -> None:
        """Let only the wanted ones of those that wait go on waiting."""
        for kind, waiting in list(self._waiting.items()):
            self._waiting[kind] = deque(item for item in waiting if wanted(item))
            if not self._waiting[kind]:
                del self._waiting[kind]
