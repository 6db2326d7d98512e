"""How many dead letters wait, told now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.core.metrics import NoMetrics
from pipeline.errors import StoreUnavailable
from pipeline.runtime.dlq_depth import DepthGauge
from tests.unit.runtime_parts import eventually


class Told(NoMetrics):
    def __init__(self) -> None:
        self.depths: list[tuple[str, float]] = []

    def set_dlq_depth(self, queue: str, records: float) -> None:  # type: ignore[override]  # there it takes anything
        self.depths.append((queue, records))


class Store:
    """Counts up, and is away when told to be."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    def count(self, queue: str) -> int:
        assert queue == "default"
        self.asked += 1
        if self.away:
            raise StoreUnavailable("away")
        return self.asked


@contextmanager
def running(gauge: DepthGauge) -> Iterator[None]:
    thread = threading.Thread(target=gauge.loop)
    thread.start()
    try:
        yield
    finally:
        gauge.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_it_is_told_at_once_and_again_and_again() -> None:
    store, told = Store(), Told()
    with running(DepthGauge(count=store.count, metrics=told, queue="default", interval=0.01)):
        eventually(lambda: len(told.depths) >= 3)
    assert told.depths[:3] == [("default", 1), ("default", 2), ("default", 3)]


def test_to_stop_does_not_wait_for_the_next_time() -> None:
    store, told = Store(), Told()
    with running(DepthGauge(count=store.count, metrics=told, queue="default", interval=3600)):
        eventually(lambda: told.depths)
    assert store.asked == 1


def test_a_store_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    store, told = Store(), Told()
    store.away = True
    gauge = DepthGauge(count=store.count, metrics=told, queue="default", interval=0.01)
    with caplog.at_level(logging.WARNING), running(gauge):
        eventually(lambda: store.asked >= 2)
        assert told.depths == []
        store.away = False
        eventually(lambda: told.depths)
    assert "cannot count dead letters: away" in caplog.text
