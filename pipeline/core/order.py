"""Order by key: of the jobs of one key only the first goes on, the others wait behind it in the order they came in.

A line belongs to a *place*, which is a partition: when the partition goes away its lines go with it, and its next owner
reads the same records in the same order and forms the same lines. The first of a line leaves it when its job has ended
(completed, dead, cancelled, or found to be a duplicate), and not when it failed: a retry keeps its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["KeyGate"]

Place = TypeVar("Place", bound=Hashable)
Item = TypeVar("Item")


class KeyGate(Generic[Place, Item]):
    """Lines of items, told apart by identity. Not thread-safe: its owner guards it."""

    def __init__(self) -> None:
        self._lines: dict[Place, dict[Hashable, deque[Item]]] = {}

    def enter(self, place: Place, key: Hashable, item: Item) -> bool:
        """Join the line of a key. True when the item is the first and may go on; else it waits for `leave`."""
        lines = self._lines.setdefault(place, {})
        line = lines.get(key)
        if line is None:
            lines[key] = deque((item,))
            return True
        line.append(item)
        return False

    def leave(self, place: Place, key: Hashable, item: Item) -> Item | None:
        """The first of a line has ended: give the one that may go on now.

        An item that is not the first of its line comes from an assignment that is over, and moves nothing.
        """
        lines = self._lines.get(place, {})
        line = lines.get(key)
        if not line or line[0] is not item:
            return None
        line.popleft()
        if line:
            return line[0]
        del lines[key]
        return None

    def replace(self, place: Place, key: Hashable, item: Item, other: Item) -> None:
        """Let `other` have the place of `item`, if that is the first of its line: the same job, in its next attempt."""
        line = self._lines.get(place, {}).get(key)
        if line and line[0] is item:
            line[0] = other

    def drop(self, place: Place) -> list[Item]:
        """Forget the lines of a place; give the items that were waiting in them."""
        lines = self._lines.pop(place, {})
        return [item for line in lines.values() for item in list(line)[1:]]
