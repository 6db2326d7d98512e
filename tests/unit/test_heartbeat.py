"""The lease: renewed in time, judged by a clock that nobody sets, and given up when it cannot be renewed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline.core.clock import ManualClock
from pipeline.core.ports import WorkerInfo
from pipeline.errors import DatabaseNotMigrated, StoreUnavailable
from pipeline.runtime import heartbeat as module
from pipeline.runtime.heartbeat import Heartbeat
from pipeline.runtime.time import StoreClock
from tests.unit.runtime_parts import NOW, eventually

INFO = WorkerInfo("w", "host", 1, ("default",), lease=15.0)


class WrongClock(ManualClock):
    """A machine's clocks: the one on the wall is off, and may be set."""

    off = 0.0

    def time(self) -> float:
        return super().time() + self.off


class Store:
    """Only heartbeats. Takes as long as it is told to; `now` is its own clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.seen: list[WorkerInfo] = []
        self.takes = 0.0
        self.on_beat: Callable[[], object] = lambda: None

    def heartbeat(self, worker: WorkerInfo) -> float:
        self.clock.advance(self.takes)
        self.seen.append(worker)
        self.on_beat()
        return NOW + 1000 + self.clock.monotonic()


class Bench:
    def __init__(self, interval: float = 3.0) -> None:
        self.clock = WrongClock(0.0)
        self.store = Store(self.clock)
        self.store_clock = StoreClock(self.clock)
        self.heartbeat = Heartbeat(
            store=self.store,  # type: ignore[arg-type]
            worker=INFO,
            interval=interval,
            clock=self.clock,
            store_clock=self.store_clock,
        )

    def loop(self) -> threading.Thread:
        thread = threading.Thread(target=self.heartbeat.loop, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_worker_is_not_alive_before_its_first_heartbeat(bench: Bench) -> None:
    assert not bench.heartbeat.alive()
    bench.heartbeat.beat()
    assert bench.heartbeat.alive()
    assert bench.store.seen == [INFO]


def test_it_takes_itself_for_dead_no_later_than_others_may(bench: Bench) -> None:
    """The store began to count when it was asked at the earliest: so does the worker, however late the answer came."""
    bench.store.takes = 4.0
    bench.heartbeat.beat()
    bench.clock.advance(10.99)
    assert bench.heartbeat.alive()
    bench.clock.advance(0.01)
    assert not bench.heartbeat.alive()


def test_each_heartbeat_renews_the_lease(bench: Bench) -> None:
    for _ in range(5):
        bench.heartbeat.beat()
        bench.clock.advance(10)
    assert bench.heartbeat.alive()
    bench.clock.advance(5)
    assert not bench.heartbeat.alive()


def test_a_heartbeat_that_fails_renews_nothing(bench: Bench) -> None:
    def fail() -> None:
        raise StoreUnavailable("away")

    bench.heartbeat.beat()
    bench.store.on_beat = fail
    bench.clock.advance(10)
    with pytest.raises(StoreUnavailable):
        bench.heartbeat.beat()
    bench.clock.advance(5)
    assert not bench.heartbeat.alive()


@pytest.mark.parametrize("off", [7200.0, -7200.0])
def test_a_machine_whose_clock_is_wrong_or_set_keeps_its_lease_and_the_time_of_the_store(
    bench: Bench, off: float
) -> None:
    """Row 32."""
    bench.clock.off = off
    bench.heartbeat.beat()
    assert bench.store_clock.time() == NOW + 1000
    bench.clock.off = -off
    bench.clock.advance(5)
    assert bench.store_clock.time() == NOW + 1005
    assert bench.heartbeat.alive()
    bench.heartbeat.beat()
    assert bench.store_clock.time() == NOW + 1005


class TestLoop:
    def test_it_beats_until_it_is_stopped(self) -> None:
        bench = Bench(interval=0.0)
        thread = bench.loop()
        eventually(lambda: len(bench.store.seen) >= 5)
        bench.heartbeat.stop()
        eventually(lambda: not thread.is_alive())

    def test_it_is_stopped_at_once_although_the_next_heartbeat_is_far(self) -> None:
        bench = Bench(interval=3600.0)
        thread = bench.loop()
        eventually(lambda: bench.store.seen)
        bench.heartbeat.stop()
        eventually(lambda: not thread.is_alive())
        assert len(bench.store.seen) == 1

    def test_an_outage_is_tried_again_soon_and_ends_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
        bench = Bench(interval=3600.0)

        def fail_at_first() -> None:
            if len(bench.store.seen) < 4:
                raise StoreUnavailable("away")

        bench.store.on_beat = fail_at_first
        thread = bench.loop()
        eventually(bench.heartbeat.alive)
        assert len(bench.store.seen) == 4
        bench.heartbeat.stop()
        eventually(lambda: not thread.is_alive())

    def test_anything_else_ends_it_for_its_worker_to_leave(self) -> None:
        bench = Bench()

        def fail() -> None:
            raise DatabaseNotMigrated("no such table")

        bench.store.on_beat = fail
        with pytest.raises(DatabaseNotMigrated):
            bench.heartbeat.loop()
