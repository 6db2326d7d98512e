"""Committed offsets: never beyond an unfinished record, never falling within an assignment."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from pipeline.core.offsets import OffsetTracker, Partition

P0, P1 = Partition("jobs.default.normal", 0), Partition("jobs.default.normal", 1)
PARTITIONS = st.sampled_from([P0, P1])


def tracker_with(*offsets: int) -> tuple[OffsetTracker, int]:
    tracker = OffsetTracker()
    tracker.assign([P0])
    for offset in offsets:
        tracker.received(P0, offset)
    return tracker, tracker.epoch(P0)


def test_nothing_is_committed_before_something_is_done() -> None:
    tracker, _ = tracker_with(3, 4)
    assert tracker.take_commits() == {}


def test_a_gap_in_the_log_is_no_hole() -> None:
    tracker, epoch = tracker_with(3, 7, 9)
    tracker.done(P0, 7, epoch)
    assert tracker.take_commits() == {}
    tracker.done(P0, 3, epoch)
    assert tracker.take_commits() == {P0: 8}


def test_an_offset_is_handed_out_once_until_its_commit_failed() -> None:
    tracker, epoch = tracker_with(3)
    tracker.done(P0, 3, epoch)
    assert tracker.take_commits() == {P0: 4}
    assert tracker.take_commits() == {}
    tracker.commit_failed([P0])
    assert tracker.take_commits() == {P0: 4}


def test_only_the_partitions_asked_for_are_handed_out() -> None:
    tracker, epoch = tracker_with(3)
    tracker.assign([P1])
    tracker.received(P1, 5)
    tracker.done(P0, 3, epoch)
    tracker.done(P1, 5, tracker.epoch(P1))
    assert tracker.take_commits([P1]) == {P1: 6}
    assert tracker.take_commits() == {P0: 4}


def test_a_result_of_a_lost_assignment_is_dropped() -> None:
    tracker, old = tracker_with(3)
    tracker.drop([P0])
    tracker.assign([P0])
    tracker.received(P0, 3)
    assert not tracker.done(P0, 3, old)
    assert tracker.take_commits() == {}
    assert tracker.unfinished(P0) == 1


def test_a_partition_that_is_assigned_again_keeps_its_epoch() -> None:
    tracker, epoch = tracker_with(3)
    tracker.assign([P0, P1])
    assert tracker.epoch(P0) == epoch
    assert tracker.unfinished(P0) == 1


def test_a_record_of_an_unassigned_partition_has_no_epoch() -> None:
    tracker, _ = tracker_with()
    assert tracker.received(P1, 0) == 0
    assert tracker.epoch(P1) == 0
    assert tracker.unfinished(P1) == 0


def test_a_rewind_after_everything_was_done_does_not_let_the_offset_fall() -> None:
    tracker, epoch = tracker_with(3, 4, 5)
    for offset in (3, 4, 5):
        tracker.done(P0, offset, epoch)
    assert tracker.take_commits() == {P0: 6}
    tracker.received(P0, 3)
    tracker.done(P0, 3, epoch)
    assert tracker.take_commits() == {}
    tracker.received(P0, 6)
    tracker.done(P0, 6, epoch)
    assert tracker.take_commits() == {P0: 7}


def test_a_record_that_comes_again_after_it_was_done_leaves_nothing_unfinished() -> None:
    tracker, epoch = tracker_with(3, 4, 5)
    tracker.done(P0, 4, epoch)
    tracker.received(P0, 4)
    tracker.done(P0, 4, epoch)
    tracker.done(P0, 3, epoch)
    assert tracker.take_commits() == {P0: 5}
    assert tracker.unfinished(P0) == 1


def test_a_record_from_before_the_first_one_received_holds_the_offset_back() -> None:
    """A consumer that begins again further back must not commit past what it has yet to do."""
    tracker, epoch = tracker_with(5, 6)
    tracker.received(P0, 3)
    tracker.done(P0, 5, epoch)
    tracker.done(P0, 6, epoch)
    assert tracker.take_commits() == {}
    tracker.done(P0, 3, epoch)
    assert tracker.take_commits() == {P0: 7}
    assert tracker.unfinished(P0) == 0


class OffsetMachine(RuleBasedStateMachine):
    """Random assignments, gaps, rewinds, results in any order and late ones; the broker accepts any commit of the owner."""

    received = Bundle("received")

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.head = {P0: 0, P1: 0}  # where each log ends
        self.epochs: dict[Partition, int] = {}  # of the assigned ones
        self.open: dict[Partition, set[int]] = {}  # received in this epoch, and not done
        self.seen: dict[Partition, set[int]] = {}
        self.handed_out: dict[Partition, int] = {}  # in this epoch
        self.old: set[int] = set()

    @initialize()
    def start(self) -> None:
        self.assign(P0)

    @rule(partition=PARTITIONS)
    def assign(self, partition: Partition) -> None:
        self.tracker.assign([partition])
        epoch = self.tracker.epoch(partition)
        if partition not in self.epochs:
            assert epoch not in self.old
            self.epochs[partition] = epoch
            self.open[partition], self.seen[partition] = set(), set()
        assert self.epochs[partition] == epoch > 0

    @rule(partition=PARTITIONS)
    def drop(self, partition: Partition) -> None:
        self.tracker.drop([partition])
        if partition in self.epochs:
            self.old.add(self.epochs.pop(partition))
            self.handed_out.pop(partition, None)
            del self.open[partition], self.seen[partition]

    @rule(target=received, partition=PARTITIONS, gap=st.sampled_from([0, 0, 0, 1, 5]))
    def receive(self, partition: Partition, gap: int) -> tuple[Partition, int, int]:
        offset = self.head[partition] + gap
        self.head[partition] = offset + 1
        epoch = self.tracker.received(partition, offset)
        assert epoch == self.epochs.get(partition, 0)
        if epoch:
            self.open[partition].add(offset)
            self.seen[partition].add(offset)
        return partition, offset, epoch

    @rule(target=received, partition=PARTITIONS, back=st.integers(1, 6))
    def rewind(self, partition: Partition, back: int) -> Any:
        """A record comes a second time, done or not; or one comes that was left out at first."""
        offset = self.head[partition] - back
        seen, still_open = self.seen.get(partition, set()), self.open.get(partition, set())
        if not seen or offset < 0 or (offset not in seen and not any(each < offset for each in still_open)):
            return multiple()
        if offset not in seen:
            seen.add(offset)
            still_open.add(offset)
        return partition, offset, self.tracker.received(partition, offset)

    @rule(delivery=st.one_of(consumes(received), received))
    def done(self, delivery: tuple[Partition, int, int]) -> None:
        partition, offset, epoch = delivery
        present = epoch != 0 and self.epochs.get(partition) == epoch
        assert self.tracker.done(partition, offset, epoch) == present
        if present:
            self.open[partition].discard(offset)

    @rule(only=st.sampled_from([None, [P0], [P1], [P0, P1]]))
    def commit(self, only: list[Partition] | None) -> None:
        for partition, offset in self.tracker.take_commits(only).items():
            assert only is None or partition in only
            assert offset >= self.handed_out.get(partition, 0), "the committed offset falls"
            assert not any(each < offset for each in self.open[partition]), "it passes an unfinished record"
            assert offset - 1 in self.seen[partition]
            self.handed_out[partition] = offset

    @precondition(lambda self: self.handed_out)
    @rule(partition=PARTITIONS)
    def commit_failed(self, partition: Partition) -> None:
        self.tracker.commit_failed([partition])
        if partition in self.handed_out:
            again = self.tracker.take_commits([partition])[partition]
            assert again >= self.handed_out[partition]
            self.handed_out[partition] = again

    @invariant()
    def unfinished_is_what_is_open(self) -> None:
        for partition in (P0, P1):
            assert self.tracker.unfinished(partition) == len(self.open.get(partition, ()))
        assert set(self.tracker.assigned()) == set(self.epochs)

    def teardown(self) -> None:
        """When all is done, everything that was received can be committed."""
        for partition, epoch in self.epochs.items():
            for offset in sorted(self.open[partition]):
                self.tracker.done(partition, offset, epoch)
            self.open[partition].clear()
        self.commit(None)
        for partition, seen in self.seen.items():
            assert self.handed_out.get(partition, 0) == (max(seen) + 1 if seen else 0)


OffsetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOffsetMachine = OffsetMachine.TestCase
