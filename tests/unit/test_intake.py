"""Fetching and committing: back-pressure by pausing, commits only of what is done and told, and clean rebalances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipeline.adapters.memory_broker import MemoryBroker, MemoryJobConsumer
from pipeline.core import headers as h
from pipeline.core.headers import job_headers
from pipeline.core.offsets import Partition
from pipeline.core.partitioner import partition_of
from pipeline.core.ports import Outgoing
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.events import EventSink
from pipeline.runtime.held import Limits
from pipeline.runtime.intake import Intake, IntakeSettings
from tests.unit.runtime_parts import MAIN, RETRY, Journal, clock_at, new_buffer, new_job

P0, P1, R0 = Partition(MAIN, 0), Partition(MAIN, 1), Partition(RETRY, 0)
GROUP = "workers"
KEYS = {
    number: next(b"%d" % key for key in range(99) if partition_of(b"%d" % key, 2) == number)
    for number in (0, 1)
}
ROOMY = Limits(jobs=1000, bytes=10**9, waiting=1000)


class Watched:
    """The consumer, with what was asked of it; `refuses` lets commits fail."""

    def __init__(self, inner: MemoryJobConsumer, journal: Journal) -> None:
        self.inner = inner
        self._journal = journal
        self.paused: set[Partition] = set()
        self.refuses = False
        self._failed: list[Partition] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def poll(self, most: int, _timeout: float) -> list[Any]:
        return self.inner.poll(most, 0)

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> bool:
        self._journal.add("commit", (dict(offsets), wait))
        if self.refuses:
            self._failed += [] if wait else offsets
            return not wait
        return self.inner.commit(offsets, wait=wait)

    def failed_commits(self) -> list[Partition]:
        failed, self._failed = self._failed, []
        return failed

    def pause(self, partitions: Sequence[Partition]) -> None:
        self.paused |= set(partitions)
        self.inner.pause(partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self.paused -= set(partitions)
        self.inner.resume(partitions)


class Events(EventSink):
    """Acknowledged up to a period; all of them at first."""

    def __init__(self, journal: Journal) -> None:
        self.period = 0
        self.known = 10**9
        self._journal = journal

    def seal(self) -> int:
        self._journal.add("seal", self.period)
        self.period += 1
        return self.period - 1

    def acknowledged(self, period: int, *, timeout: float = 0.0) -> bool:
        del timeout
        return period <= self.known


class Bench:
    def __init__(self, limits: Limits = ROOMY, *, interval: float = 0.0, poll_batch: int = 100) -> None:
        self.clock = clock_at()
        self.broker = MemoryBroker(self.clock)
        self.broker.create_topic(MAIN, 2)
        self.broker.create_topic(RETRY)
        self.journal = Journal()
        self.events = Events(self.journal)
        self.consumer = Watched(self.broker.consumer(GROUP), self.journal)
        self.buffer = new_buffer(Partition("none", 0))
        self.buffer.forget([Partition("none", 0)])
        self.intake = Intake(
            consumer=self.consumer,
            buffer=self.buffer,
            settings=IntakeSettings(poll_batch, interval, revoke_timeout=0, limits=limits),
            queue_of=lambda topic: topic.split(".")[1],
            is_retry=lambda topic: topic == RETRY,
            clock=self.clock,
            events=self.events,
        )
        self.consumer.subscribe([MAIN, RETRY], self.intake)
        self.intake.step()
        self.journal.entries.clear()

    def publish(self, count: int = 1, *, topic: str = MAIN, partition: int = 0, **values: Any) -> None:
        for _ in range(count):
            headers = job_headers(new_job(**values), ce_time="2027-01-15T08:00:00+00:00")
            key = KEYS[partition]
            self.broker.producer().send(Outgoing(topic, key, b"{}", headers))

    def taken(self, most: int = 1000) -> list[Delivery]:
        return self.buffer.take("thread", most, self.clock.time())

    def committed(self) -> dict[Partition, int]:
        return self.broker.committed(GROUP)

    def commits(self) -> list[tuple[dict[Partition, int], bool]]:
        return self.journal.details("commit")


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestFetching:
    def test_records_become_deliveries_of_their_queue(self, bench: Bench) -> None:
        bench.publish(2)
        assert bench.intake.step() == 2
        first, second = bench.taken()
        assert (first.job.queue, first.partition, first.record.offset, second.record.offset) == (
            "default",
            P0,
            0,
            1,
        )
        assert first.problem == ""

    def test_a_malformed_record_is_taken_in_with_its_problem(self, bench: Bench) -> None:
        """It must reach the dead letters: skipped, its offset would be passed."""
        bench.broker.producer().send(Outgoing(MAIN, KEYS[0], b"{}", [(h.ID, b"?")]))
        bench.intake.step()
        (bad,) = bench.taken()
        assert bad.problem.startswith(f"header {h.ID} is ")

    def test_one_batch_at_a_time(self) -> None:
        bench = Bench(poll_batch=3)
        bench.publish(5)
        assert [bench.intake.step() for _ in range(3)] == [3, 2, 0]


class TestBackPressure:
    def test_main_topics_pause_when_full_and_resume_when_half_empty(self) -> None:
        bench = Bench(Limits(jobs=10, bytes=10**9, waiting=1000), poll_batch=5)
        bench.publish(30)
        for _ in range(5):
            bench.intake.step()
        assert bench.buffer.load().jobs == 10
        assert bench.consumer.paused == {P0, P1}
        assert bench.intake.fill() == 1.0
        bench.buffer.done(bench.taken(4))
        bench.intake.step()
        assert bench.consumer.paused == {P0, P1}, "a little room is no reason to fetch again"
        bench.buffer.done(bench.taken(2))
        bench.intake.step()
        assert bench.consumer.paused == set()
        assert bench.intake.step() == 5
        assert bench.intake.paused() == 0

    def test_they_pause_for_bytes_too(self) -> None:
        bench = Bench(Limits(jobs=1000, bytes=3000, waiting=1000))
        bench.publish(5)
        bench.intake.step()
        assert bench.consumer.paused == {P0, P1}

    def test_retries_that_wait_stop_no_main_topic_and_the_other_way_round(self) -> None:
        bench = Bench(Limits(jobs=10, bytes=10**9, waiting=5))
        bench.publish(7, topic=RETRY, not_before=bench.clock.time() + 600)
        bench.intake.step()
        assert bench.consumer.paused == {R0}
        bench.publish(12)
        bench.intake.step()
        assert bench.consumer.paused == {P0, P1, R0}
        bench.buffer.done(bench.taken())
        bench.intake.step()
        assert bench.consumer.paused == {R0}

    def test_polling_and_committing_go_on_while_everything_is_paused(self) -> None:
        """Row 6: or the group would take the worker for dead."""
        bench = Bench(Limits(jobs=2, bytes=10**9, waiting=10))
        bench.publish(5)
        bench.intake.step()
        bench.buffer.done(bench.taken(1))
        bench.intake.step()
        assert bench.committed() == {P0: 1}

    def test_a_draining_worker_fetches_nothing_more_and_commits_on(self, bench: Bench) -> None:
        bench.publish(2)
        bench.intake.step()
        bench.intake.drain()
        bench.intake.step()
        bench.publish(3)
        assert bench.intake.step() == 0
        bench.buffer.done(bench.taken())
        bench.intake.step()
        assert bench.committed() == {P0: 2}

    def test_a_partition_that_comes_back_while_all_is_full_is_paused_anew(self) -> None:
        """The client forgets pauses with the assignment."""
        bench = Bench(Limits(jobs=1, bytes=10**9, waiting=10))
        bench.publish(3)
        bench.intake.step()
        assert bench.intake.paused() == 2
        bench.broker.expire(bench.consumer.inner)
        bench.consumer.paused.clear()
        bench.intake.step()
        bench.intake.step()
        assert bench.consumer.paused == {P0, P1}


class TestCommitting:
    def test_what_is_done_is_committed_once_after_its_events_were_sent(self, bench: Bench) -> None:
        bench.publish(3)
        bench.intake.step()
        first, _, third = bench.taken()
        bench.buffer.done([first, third])
        bench.journal.entries.clear()
        bench.intake.step()
        bench.intake.step()
        assert bench.journal.names() == ["seal", "commit", "seal"]
        assert bench.commits() == [({P0: 1}, False)]

    def test_commits_come_at_their_interval(self) -> None:
        bench = Bench(interval=5.0)
        bench.clock.advance(5)
        bench.publish(2)
        bench.intake.step()
        for delivery in bench.taken():
            bench.buffer.done([delivery])
            bench.clock.advance(2)
            bench.intake.step()
        assert bench.commits() == []
        bench.clock.advance(1)
        bench.intake.step()
        assert bench.commits() == [({P0: 2}, False)]

    def test_nothing_is_committed_before_its_events_are_acknowledged(self, bench: Bench) -> None:
        bench.publish(2)
        bench.intake.step()
        first, second = bench.taken()
        bench.events.known = -1
        bench.buffer.done([first])
        bench.intake.step()
        asked = bench.events.period - 1
        bench.buffer.done([second])
        bench.intake.step()
        assert bench.commits() == []
        bench.events.known = asked
        bench.intake.step()
        assert bench.committed() == {P0: 1}
        bench.events.known = 10**9
        bench.intake.step()
        assert bench.committed() == {P0: 2}

    def test_a_commit_that_was_refused_is_made_anew(self, bench: Bench) -> None:
        bench.publish(3)
        bench.intake.step()
        first, second, _ = bench.taken()
        bench.consumer.refuses = True
        bench.buffer.done([first])
        bench.intake.step()
        bench.buffer.done([second])
        bench.consumer.refuses = False
        bench.intake.step()
        assert bench.commits() == [({P0: 1}, False), ({P0: 2}, False)]
        assert bench.committed() == {P0: 2}

    def test_a_last_commit_is_waited_for_and_made_anew_when_it_was_refused(self, bench: Bench) -> None:
        bench.publish(1)
        bench.intake.step()
        bench.buffer.done(bench.taken())
        bench.consumer.refuses = True
        bench.intake.commit()
        bench.consumer.refuses = False
        bench.intake.commit()
        assert bench.commits() == [({P0: 1}, True), ({P0: 1}, True)]
        assert bench.committed() == {P0: 1}

    def test_without_anything_done_nothing_is_committed(self, bench: Bench) -> None:
        bench.intake.step()
        bench.intake.commit()
        assert not any(offsets for offsets, _ in bench.commits())


class TestRebalances:
    def running(self, bench: Bench) -> list[Delivery]:
        """Three jobs of a partition: two run, one waits."""
        bench.publish(3)
        bench.intake.step()
        return bench.taken(2)

    def test_what_is_done_is_committed_before_a_partition_goes_and_the_rest_is_dropped(
        self, bench: Bench
    ) -> None:
        first, second = self.running(bench)
        bench.buffer.done([first])
        bench.journal.entries.clear()
        bench.intake.on_revoked([P0])
        assert bench.journal.names() == ["seal", "commit"]
        assert bench.commits() == [({P0: 1}, True)]
        assert P0 not in bench.buffer.assigned()
        bench.buffer.done([second])
        bench.intake.commit()
        assert bench.commits() == [({P0: 1}, True), ({}, True)], (
            "never across assignments: Kafka would accept it"
        )
        assert bench.buffer.load() == (0, 0, 0, 0)

    def test_jobs_that_run_get_their_time_to_finish(self, bench: Bench) -> None:
        first, second = self.running(bench)

        def finish(partitions: Sequence[Partition], timeout: float) -> bool:
            assert (list(partitions), timeout) == ([P0], 0)
            assert bench.buffer.load().jobs == 2, "what has not started is gone already"
            bench.buffer.done([first, second])
            return True

        bench.buffer.while_waiting = finish
        bench.intake.on_revoked([P0])
        assert bench.committed() == {P0: 2}

    def test_of_a_lost_partition_nothing_is_committed(self, bench: Bench) -> None:
        """Measured: right after a loss Kafka refuses the commit, and at the next try accepts it: offset 10 became 1."""
        first, _ = self.running(bench)
        bench.events.known = -1
        bench.buffer.done([first])
        bench.intake.step()
        bench.intake.on_lost([P0])
        bench.events.known = 10**9
        bench.intake.step()
        bench.intake.commit()
        assert [offsets for offsets, _ in bench.commits() if offsets] == []

    def test_the_others_are_committed_on(self, bench: Bench) -> None:
        bench.publish(1)
        bench.publish(1, partition=1)
        bench.intake.step()
        bench.events.known = -1
        bench.buffer.done(bench.taken())
        bench.intake.step()
        bench.intake.on_lost([P0])
        bench.events.known = 10**9
        bench.intake.step()
        assert bench.commits() == [({P1: 1}, False)]

    def test_without_acknowledged_events_a_revoked_partition_is_not_committed(self, bench: Bench) -> None:
        """Its next owner is told the jobs once more, finds them settled, and tells their last move."""
        first, _ = self.running(bench)
        bench.buffer.done([first])
        bench.events.known = -1
        bench.intake.on_revoked([P0])
        bench.events.known = 10**9
        bench.intake.commit()
        assert [offsets for offsets, _ in bench.commits() if offsets] == []

    def test_a_partition_that_comes_back_is_read_from_what_was_committed(self, bench: Bench) -> None:
        first, second = self.running(bench)
        bench.buffer.done([first])
        bench.intake.step()
        bench.broker.expire(bench.consumer.inner)
        bench.intake.step()
        bench.intake.step()
        assert bench.committed() == {P0: 1}
        bench.buffer.done([second])
        again = bench.taken()
        assert sorted(delivery.record.offset for delivery in again) == [1, 2]
        bench.buffer.done(again)
        bench.intake.step()
        assert bench.committed() == {P0: 3}
