"""Reading ahead on a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from pipeline.runtime.read_ahead import ReadAhead


class Source:
    """Gives numbers, and notes what was asked of it and on which threads."""

    def __init__(self, count: int, *, error: Exception | None = None) -> None:
        self._count = count
        self._error = error
        self.given = 0
        self.closed = False
        self.threads: set[int] = set()

    def read(self) -> Generator[int]:
        try:
            for number in range(self._count):
                self.threads.add(threading.get_ident())
                self.given += 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.threads.add(threading.get_ident())
            self.closed = True


def test_all_items_come_in_order_and_the_source_is_used_and_closed_by_one_other_thread() -> None:
    source = Source(50)
    with ReadAhead(source.read()) as items:
        assert list(items) == list(range(50))
    assert source.closed
    assert len(source.threads) == 1
    assert threading.get_ident() not in source.threads


def test_an_error_comes_where_its_item_would_have_come() -> None:
    source = Source(3, error=ValueError("the topic is gone"))
    with ReadAhead(source.read()) as ahead:
        items = iter(ahead)
        assert [next(items), next(items), next(items)] == [0, 1, 2]
        with pytest.raises(ValueError, match="the topic is gone"):
            next(items)
    assert source.closed


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_to_leave_early_ends_the_reading_whatever_was_ready(taken: int) -> None:
    source = Source(1_000_000)
    with ReadAhead(source.read()) as items:
        for _, _ in zip(range(taken), items, strict=False):
            pass
    assert source.closed
    assert (
        source.given <= taken + 4
    )  # bounded: one is ready, one is being put, and room is made while it ends


def test_an_error_of_whoever_takes_the_items_ends_the_reading_too() -> None:
    source = Source(1_000_000)

    def take_one() -> None:
        with ReadAhead(source.read()) as items:
            next(iter(items))
            raise KeyError

    with pytest.raises(KeyError):
        take_one()
    assert source.closed
