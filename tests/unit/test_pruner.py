"""The pace at which a worker forgets, and what it tells of it."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import pytest

from pipeline.core.clock import ManualClock
from pipeline.core.metrics import NoMetrics
from pipeline.core.ports import Pruned
from pipeline.errors import DatabaseNotMigrated, StoreUnavailable
from pipeline.runtime.pruning import IDLE_SECONDS, Pruner

WEEK = 604_800.0


class Turns:
    """Gives one turn after the other, each of which takes `seconds`."""

    def __init__(
        self, clock: ManualClock, turns: Sequence[Pruned | Exception | None], *, seconds: float = 0.0
    ) -> None:
        self._clock, self._turns, self._seconds = clock, list(turns), seconds
        self.kept: list[float] = []
        self.closed = False

    def turn(self, keep: float) -> Pruned | None:
        self.kept.append(keep)
        self._clock.advance(self._seconds)
        turn = self._turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def close(self) -> None:
        self.closed = True


class Counts(NoMetrics):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def pruned(self, kind: str, n: int) -> None:  # type: ignore[override]
        self.counts[kind] = self.counts.get(kind, 0) + n


def pruner(turns: Turns, clock: ManualClock, *, counts: Counts, keep: float | None = WEEK) -> Pruner:
    return Pruner(pruning=turns, keep=keep, metrics=counts, clock=clock, rng=random.Random(1))


def test_a_round_goes_on_with_a_pause_as_long_as_its_turns_and_is_told_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, counts = ManualClock(), Counts()
    turns = Turns(
        clock,
        [Pruned(5, 0, over=False, in_round=5), Pruned(2, 1, over=True, in_round=7)],
        seconds=3.0,
    )
    ours = pruner(turns, clock, counts=counts)
    with caplog.at_level(logging.INFO, "pipeline.prune"):
        assert ours.step(WEEK) == pytest.approx(3.0)
        assert not caplog.records
        assert ours.step(WEEK) == IDLE_SECONDS
    assert counts.counts == {"job": 7, "worker": 1}
    (record,) = caplog.records
    assert (record.action, record.jobs, record.workers) == ("pruned", 7, 1)  # type: ignore[attr-defined]


def test_workers_that_have_no_turn_do_not_all_come_back_at_once() -> None:
    clock = ManualClock()
    turns = Turns(clock, [None] * 50)
    ours = pruner(turns, clock, counts=Counts())
    waits = {ours.step(WEEK) for _ in range(50)}
    assert len(waits) == 50
    assert all(IDLE_SECONDS * 0.5 <= wait <= IDLE_SECONDS * 1.5 for wait in waits)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), DatabaseNotMigrated("away")])
def test_an_outage_or_a_newer_release_is_told_and_waited_out(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    turns = Turns(clock, [error])
    assert pruner(turns, clock, counts=Counts()).step(WEEK) == IDLE_SECONDS
    assert "cannot forget old jobs: away" in caplog.text


def test_without_a_window_nothing_is_ever_asked_for() -> None:
    clock = ManualClock()
    turns = Turns(clock, [])
    pruner(turns, clock, counts=Counts(), keep=None).loop()
    assert turns.kept == []
    assert turns.closed


def test_it_stops_when_it_is_told() -> None:
    clock = ManualClock()
    turns = Turns(clock, [])
    ours = pruner(turns, clock, counts=Counts())
    ours.stop()
    ours.loop()
    assert turns.kept == []
    assert turns.closed
