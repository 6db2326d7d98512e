"""The clock of a worker follows the store's, as well as the answers tell it."""

from __future__ import annotations

import pytest

from pipeline.runtime.time import CautiousClock, StoreClock


class SetClock:
    """A machine whose clocks stand still until they are moved; its wall clock is wrong by an hour."""

    def __init__(self) -> None:
        self.now = 50.0

    def time(self) -> float:
        return self.monotonic() + 3600.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def machine() -> SetClock:
    return SetClock()


@pytest.fixture
def clock(machine: SetClock) -> StoreClock:
    return StoreClock(machine)


def ask(clock: StoreClock, machine: SetClock, store_time: float, *, way: float, back: float) -> None:
    """Ask the store, which reads `store_time` when the question arrives after `way` seconds."""
    asked_at = machine.now
    machine.now += way + back
    clock.sync(store_time, asked_at=asked_at, answered_at=machine.now)


def test_it_is_the_machines_own_until_the_store_has_answered(clock: StoreClock, machine: SetClock) -> None:
    assert clock.time() == 3650.0
    ask(clock, machine, 1000.0, way=0.001, back=0.001)
    assert clock.time() == pytest.approx(1000.001)
    machine.now += 7
    assert clock.time() == pytest.approx(1007.001)


def test_a_quick_answer_corrects_a_slow_one(clock: StoreClock, machine: SetClock) -> None:
    ask(clock, machine, 1000.4, way=0.4, back=0.0)  # it waited for the connection: off by 0.2 s
    assert clock.time() == pytest.approx(1000.6)
    ask(clock, machine, 1000.401, way=0.001, back=0.001)
    assert clock.time() == pytest.approx(1000.402)


def test_a_slow_answer_moves_nothing(clock: StoreClock, machine: SetClock) -> None:
    ask(clock, machine, 1000.001, way=0.001, back=0.001)
    machine.now += 2.998
    ask(clock, machine, 1004.0, way=1.0, back=0.0)
    assert clock.time() == pytest.approx(1004.0)


def test_a_store_whose_clock_was_set_is_followed_even_by_a_slow_answer(
    clock: StoreClock, machine: SetClock
) -> None:
    ask(clock, machine, 1000.0, way=0.001, back=0.001)
    ask(clock, machine, 8200.0, way=0.5, back=0.5)
    assert clock.time() == pytest.approx(8200.5)


def test_clocks_that_drift_apart_are_brought_together_again(clock: StoreClock, machine: SetClock) -> None:
    ask(clock, machine, 1000.0, way=0.001, back=0.001)
    machine.now += 3600  # the store's clock has gone ahead by 50 ms meanwhile
    ask(clock, machine, 4600.052, way=0.01, back=0.01)
    assert clock.time() == pytest.approx(4600.062)


@pytest.mark.parametrize(("way", "back"), [(0.4, 0.0), (0.0, 0.4), (0.1, 0.3)])
def test_what_is_due_by_the_cautious_clock_is_due_by_the_stores(
    clock: StoreClock, machine: SetClock, way: float, back: float
) -> None:
    ask(clock, machine, 1000.0, way=way, back=back)
    truth = 1000.0 + back
    assert CautiousClock(clock).time() <= truth + 1e-9
    assert clock.time() + clock.doubt() >= truth - 1e-9
    assert clock.doubt() == pytest.approx(0.2)


def test_doubt_grows_while_the_store_is_not_asked(clock: StoreClock, machine: SetClock) -> None:
    assert clock.doubt() == 0.0, "nothing is known that it could be off from"
    ask(clock, machine, 1000.0, way=0.01, back=0.01)
    machine.now += 100.0
    assert clock.doubt() == pytest.approx(0.02)
