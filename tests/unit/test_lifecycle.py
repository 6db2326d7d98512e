"""Signals of a worker process: each is passed on once, nobody deadlocks over one, and all is put back at the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.runtime.lifecycle import stop_on_signals
from tests.unit.runtime_parts import eventually

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


class Stops:
    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._during = during

    def __call__(self) -> None:
        self.count += 1
        self._during()


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_is_passed_on(number: int) -> None:
    stops = Stops()
    with stop_on_signals(stops):
        send(number)
        eventually(lambda: stops.count == 1)
        send(number)
        eventually(lambda: stops.count == 2)


def test_the_handlers_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    fd = signal.set_wakeup_fd(-1)
    with stop_on_signals(Stops()):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(fd) == -1


def test_they_are_put_back_after_an_error_too() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="in the block"), stop_on_signals(Stops()):
        raise ValueError("in the block")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_nothing_is_left_behind() -> None:
    def open_files() -> set[Path]:
        return set(Path("/proc/self/fd").iterdir())

    files, threads = open_files(), set(threading.enumerate())
    for _ in range(3):
        with stop_on_signals(Stops()):
            send(signal.SIGTERM)
    # What other tests have left may end meanwhile.
    assert open_files() <= files
    assert set(threading.enumerate()) <= threads


def test_a_signal_while_the_main_thread_holds_a_lock_that_stopping_takes_blocks_nobody() -> None:
    """Events and conditions are guarded by locks that their own thread cannot take twice."""
    lock, got = threading.Lock(), []
    stops = Stops(lambda: got.append(lock.acquire(timeout=10)))
    with stop_on_signals(stops):
        with lock:
            send(signal.SIGTERM)
            sum(range(100_000))  # the interpreter turns to signals between two bytecodes
        eventually(lambda: got)
    assert got == [True]


def test_a_signal_while_stopping_is_passed_on_after_it() -> None:
    stops = Stops(lambda: send(signal.SIGTERM) if stops.count == 1 else None)
    with stop_on_signals(stops):
        send(signal.SIGINT)
        eventually(lambda: stops.count == 2)


def test_other_signals_stop_nothing() -> None:
    stops, seen = Stops(), []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        with stop_on_signals(stops):
            send(signal.SIGUSR1)
            eventually(lambda: seen)
            send(signal.SIGTERM)
            eventually(lambda: stops.count)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stops.count == 1
