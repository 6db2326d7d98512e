"""The breakers of a worker: what is counted, what is kept back, who probes, and what is told of it. A turn of the loop at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.adapters.memory_breakers import MemoryBreakers
from pipeline.core.breaker import Breaker, BreakerKey, BreakerState, closed_by_hand, opened_by_hand
from pipeline.core.clock import ManualClock
from pipeline.core.decision import DeadLetter, Decision, Finish, RunLater
from pipeline.core.events import BreakerChange
from pipeline.core.metrics import NoMetrics
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Failed, Failure, Outcome, Snoozed, Succeeded
from pipeline.core.ports import BreakerLook
from pipeline.core.state import JobState
from pipeline.errors import StoreUnavailable
from pipeline.runtime.breaker_news import BreakerNews
from pipeline.runtime.breakers import STUCK_TYPE, Breakers, BreakerSettings
from pipeline.runtime.buffer import BufferSettings
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.next_records import Unsettled
from pipeline.runtime.shelf import ShelvingBuffer
from tests.unit.runtime_parts import MAIN, NOW, RETRY, delivery_of, new_job, record_of

TYPE, ORDERED = "email.send", "ledger.post"
KEY = BreakerKey(TYPE)
P0, R0 = Partition(MAIN, 0), Partition(RETRY, 0)
FAILED = Failed(Failure("OSError", "no route"))
AGAIN = RunLater(10.0, NOW + 10, 2, FAILED.failure, ())
DEAD = DeadLetter("max_attempts", FAILED.failure, ())
DONE = Finish(JobState.COMPLETED, ())


class AwayStore(MemoryBreakers):
    """Breakers that may be away."""

    away = False

    def look(self) -> BreakerLook:
        if self.away:
            raise StoreUnavailable("away")
        return super().look()

    def change(self, steps: Mapping[BreakerKey, Any]) -> BreakerLook:
        if self.away:
            raise StoreUnavailable("away")
        return super().change(steps)


class Fleet:
    """What all workers share."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.store = AwayStore(self.clock)
        self.changes: list[BreakerChange] = []

    def state(self, key: BreakerKey = KEY) -> BreakerState:
        return self.store.look().circuits[key].state


class Hand:
    """A worker's breakers and its buffer; the test is its threads."""

    def __init__(
        self, fleet: Fleet, name: str = "w1", *, shelf: int = 10, ahead: int = 100, **breaker: Any
    ) -> None:
        self.fleet = fleet
        self.buffer = ShelvingBuffer(
            BufferSettings(
                lanes=("thread",), lane_of=lambda _: "thread", is_retry=lambda topic: ".retry." in topic
            )
        )
        self.buffer.assign([P0, R0])
        self.ended: list[Run] = []
        self.stuck: dict[str, int] = {}
        self._offsets = iter(range(10_000))
        declared = Breaker(**{"failures": 3, "reset_after": 5.0, **breaker})
        self.breakers = Breakers(
            settings=BreakerSettings(name, "default", 4.0, shelf, 1_000_000, ahead),
            breakers={TYPE: declared, ORDERED: declared},
            store=fleet.store,
            buffer=self.buffer,
            is_retry=lambda topic: ".retry." in topic,
            in_order=[ORDERED],
            clock=fleet.clock,
            rng=random.Random(1),
            news=BreakerNews(
                worker_id=name, queue="default", metrics=NoMetrics(), on_change=fleet.changes.append
            ),
            on_runs=self.ended.extend,
            stuck=lambda: self.stuck,
        )

    def receive(
        self, count: int = 1, *, job_type: str = TYPE, topic: str = MAIN, **job: Any
    ) -> list[Delivery]:
        records = [
            record_of(new_job(job_type=job_type, **job), topic=topic, offset=next(self._offsets))
            for _ in range(count)
        ]
        received = [delivery_of(record) for record in records]
        self.buffer.receive(received, NOW)
        return received

    def run(self) -> list[Delivery]:
        """What the claim thread would hand to the executors now."""
        asked = self.breakers.admit(self.buffer.take("thread", 100, NOW))
        return self.breakers.claimed(asked, list(asked))

    def end(self, runs: list[Delivery], outcome: Outcome = FAILED, decision: Decision = AGAIN) -> None:
        now = self.fleet.clock.time()
        for delivery in runs:
            self.breakers.note([Unsettled(Run(delivery, outcome, now, now), decision, None)])
        self.buffer.done(runs)

    def fail(self, count: int, **job: Any) -> None:
        self.receive(count, **job)
        self.end(self.run())

    def turn(self, seconds: float = 0.0) -> None:
        self.fleet.clock.advance(seconds)
        self.breakers.turn()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


# --- opening


def test_failures_in_a_row_open_it_and_jobs_are_held_at_once_before_the_store_knows(fleet: Fleet) -> None:
    hand = Hand(fleet)
    hand.fail(2)
    hand.receive()
    assert len(hand.run()) == 1
    hand.fail(1)
    hand.receive(4)
    assert hand.run() == []
    assert hand.buffer.shelved() == {KEY: 4}
    hand.turn()
    assert fleet.state() is BreakerState.OPEN
    assert [(change.previous, change.state, change.reason) for change in fleet.changes] == [
        ("closed", "open", "failures")
    ]


def test_a_success_in_between_begins_the_count_anew(fleet: Fleet) -> None:
    hand = Hand(fleet)
    hand.fail(2)
    hand.receive()
    hand.end(hand.run(), Succeeded(), DONE)
    hand.fail(2)
    hand.turn()
    assert fleet.state() is BreakerState.CLOSED


def test_failures_seen_by_several_workers_are_counted_together_and_the_change_is_told_once(
    fleet: Fleet,
) -> None:
    hands = [Hand(fleet, name) for name in ("w1", "w2", "w3")]
    for hand in hands:
        hand.fail(1)
        hand.turn()
    for hand in hands:
        hand.turn()
        hand.receive()
        assert hand.run() == []
    assert [(change.state, change.by) for change in fleet.changes] == [("open", "w3")]


def test_retries_in_place_of_one_job_are_no_failures_of_its_type(fleet: Fleet) -> None:
    """Nothing else of its key may run meanwhile: it would hold all other keys, too."""
    hand = Hand(fleet)
    for attempt in range(1, 8):
        hand.fail(1, job_type=ORDERED, attempt=attempt)
    hand.receive(job_type=ORDERED)
    assert len(hand.run()) == 1
    hand.turn()
    assert fleet.state(BreakerKey(ORDERED)) is BreakerState.CLOSED


def test_first_failures_of_as_many_jobs_in_order_open_it(fleet: Fleet) -> None:
    hand = Hand(fleet)
    hand.fail(3, job_type=ORDERED)
    hand.turn()
    assert fleet.state(BreakerKey(ORDERED)) is BreakerState.OPEN


def test_a_flood_of_dead_letters_opens_it_in_order_or_not(fleet: Fleet) -> None:
    hand = Hand(fleet, failures=1000, flood=0.5, flood_least=4)
    for job_type in (TYPE, ORDERED):
        hand.receive(4, job_type=job_type, attempt=5)
        hand.end(hand.run(), FAILED, DEAD)
        hand.turn()
        assert fleet.state(BreakerKey(job_type)) is BreakerState.OPEN
    assert {change.reason for change in fleet.changes} == {"dlq_flood"}


def test_other_job_types_are_not_held(fleet: Fleet) -> None:
    hand = Hand(fleet)
    hand.fail(3)
    hand.receive(2)
    others = hand.receive(2, job_type="other.type")
    assert hand.run() == others


# --- probing


def opened(fleet: Fleet, *hands: Hand, waiting: int = 3) -> None:
    """Open it by the first hand; all know, and jobs wait with each."""
    hands[0].fail(3)
    for hand in hands:
        hand.turn()
        hand.receive(waiting)
        assert hand.run() == []


def test_one_probe_goes_in_the_whole_fleet_and_its_success_closes_it(fleet: Fleet) -> None:
    first, second = Hand(fleet), Hand(fleet, "w2")
    opened(fleet, first, second)
    first.turn(4.9)
    assert first.run() == []
    first.turn(0.2)
    second.turn()
    (probe,) = first.run()
    assert second.run() == []
    first.end([probe], Succeeded(), DONE)
    first.turn()
    assert fleet.state() is BreakerState.CLOSED
    assert [change.state for change in fleet.changes] == ["open", "half_open", "closed"]


def test_a_probe_that_fails_leaves_it_open_for_as_long_again_also_a_retry_in_order(fleet: Fleet) -> None:
    hand = Hand(fleet)
    hand.fail(3, job_type=ORDERED)
    hand.turn()
    hand.receive(2, job_type=ORDERED, attempt=4)
    assert hand.run() == []
    hand.turn(5.1)
    hand.end(hand.run())
    hand.turn()
    assert fleet.state(BreakerKey(ORDERED)) is BreakerState.OPEN
    hand.turn(4.5)
    assert hand.run() == []
    hand.turn(0.6)
    assert len(hand.run()) == 1


def test_a_probe_that_tells_nothing_makes_room_for_the_next_at_once(fleet: Fleet) -> None:
    hand = Hand(fleet)
    opened(fleet, hand)
    hand.turn(5.1)
    (probe,) = hand.run()
    hand.end([probe], Snoozed(1.0, None), AGAIN)
    hand.turn()
    hand.turn()
    (following,) = hand.run()
    assert following is not probe


def test_a_prober_that_is_gone_is_followed_by_another_when_its_lease_ends(fleet: Fleet) -> None:
    first, second = Hand(fleet), Hand(fleet, "w2")
    opened(fleet, first, second)
    first.turn(5.1)
    assert len(first.run()) == 1
    second.turn(3.9)
    assert second.run() == []
    second.turn(0.2)
    assert len(second.run()) == 1


def test_the_lease_is_renewed_while_the_probe_runs(fleet: Fleet) -> None:
    first, second = Hand(fleet), Hand(fleet, "w2")
    opened(fleet, first, second)
    first.turn(5.1)
    assert len(first.run()) == 1
    for _ in range(20):
        second.turn(1.5)
        assert second.run() == []
        first.turn()


def test_a_worker_that_stops_hands_its_probe_back_and_tells_so(fleet: Fleet) -> None:
    hand = Hand(fleet)
    opened(fleet, hand)
    hand.turn(5.1)
    assert len(hand.run()) == 1
    changes = len(fleet.changes)
    hand.breakers.stop()
    assert [(change.previous, change.state) for change in fleet.changes[changes:]] == [("half_open", "open")]


def test_the_end_of_a_probe_that_is_anothers_by_now_changes_nothing(fleet: Fleet) -> None:
    first, second = Hand(fleet), Hand(fleet, "w2")
    opened(fleet, first, second)
    first.turn(5.1)
    late = first.run()
    second.turn(4.1)
    assert len(second.run()) == 1
    first.end(late, Succeeded(), DONE)
    first.turn()
    assert fleet.state() is BreakerState.HALF_OPEN


# --- letting go, making room


def test_after_closing_jobs_go_gradually_and_new_ones_behind_those_that_waited(fleet: Fleet) -> None:
    hand = Hand(fleet, shelf=100)
    opened(fleet, hand, waiting=20)
    fleet.store.change({KEY: lambda circuit, now: closed_by_hand(circuit, by="ann", now=now)})
    hand.turn()
    counts = [len(hand.run())]
    fleet.clock.advance(0.9)
    (late,) = hand.receive()
    assert hand.run() == []  # although more may go by now: others were there before
    for _ in range(4):
        hand.turn(1.0)
        runs = hand.run()
        assert late not in runs or not hand.buffer.shelved()
        counts.append(len(runs))
        hand.end(runs, Succeeded(), DONE)
    assert counts == [2, 6, 7, 6, 0]
    assert not any(change.by == "ann" for change in fleet.changes), "who closed it by hand tells it"


def test_what_the_shelf_does_not_hold_is_put_off_without_an_attempt_for_as_long_as_it_is_open(
    fleet: Fleet,
) -> None:
    hand = Hand(fleet, shelf=2)
    opened(fleet, hand, waiting=2)
    fleet.clock.advance(100)
    late = hand.receive()
    assert hand.run() == []
    (run,) = hand.ended
    assert run.delivery in late
    assert isinstance(run.outcome, Snoozed)
    assert run.outcome.after is not None
    assert 100 <= run.outcome.after <= 120.1


def test_jobs_in_order_stay_on_the_shelf_however_many(fleet: Fleet) -> None:
    hand = Hand(fleet, shelf=1)
    hand.fail(3, job_type=ORDERED)
    hand.receive(5, job_type=ORDERED)
    assert hand.run() == []
    assert hand.ended == []
    assert hand.buffer.shelved() == {BreakerKey(ORDERED): 5}


def test_jobs_that_bar_a_partition_that_is_far_ahead_are_put_off(fleet: Fleet) -> None:
    hand = Hand(fleet, ahead=5)
    opened(fleet, hand, waiting=1)
    passed = hand.receive(8, job_type="other.type")
    assert hand.run() == passed
    hand.end(passed, Succeeded(), DONE)
    hand.turn()
    assert hand.run() == []
    assert len(hand.ended) == 1


# --- trouble


def test_what_the_store_was_not_told_is_told_later_and_jobs_are_held_meanwhile(fleet: Fleet) -> None:
    hand = Hand(fleet)
    fleet.store.away = True
    hand.fail(3)
    hand.turn()
    hand.receive()
    assert hand.run() == []
    fleet.store.away = False
    hand.turn()
    assert fleet.state() is BreakerState.OPEN


def test_too_many_runs_that_cannot_be_settled_hold_their_type_until_half_are_gone(fleet: Fleet) -> None:
    hand = Hand(fleet)
    hand.stuck[TYPE] = STUCK_TYPE
    hand.turn()
    waiting = hand.receive(3)
    others = hand.receive(1, job_type="other.type")
    assert hand.run() == others
    hand.stuck[TYPE] = STUCK_TYPE - 1
    hand.turn()
    assert hand.run() == []
    hand.stuck[TYPE] = 1
    hand.turn()
    assert set(hand.run()) == set(waiting)


def test_what_was_opened_by_hand_stays_open_without_end(fleet: Fleet) -> None:
    hand = Hand(fleet)
    fleet.store.change({KEY: lambda circuit, now: opened_by_hand(circuit, by="ann", now=now)})
    hand.turn()
    hand.receive()
    assert hand.run() == []
    hand.turn(1e6)
    assert hand.run() == []
    assert fleet.changes == []
