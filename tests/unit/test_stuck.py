"""Partitions without progress, and what the watchdog does about those that have records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pipeline.core.clock import ManualClock
from pipeline.core.metrics import NoMetrics
from pipeline.core.offsets import Partition
from pipeline.core.stuck import Progress, StuckWatch
from pipeline.errors import BrokerUnavailable, PartitionStuck, PipelineError
from pipeline.runtime.watchdog import Watchdog

P0, P1 = Partition("jobs.default.normal", 0), Partition("jobs.default.normal", 1)
AT_REST = Progress(1, 7, 0)


class TestWatch:
    def test_a_partition_is_suspected_after_a_while_without_progress(self) -> None:
        watch = StuckWatch(60)
        for now in (0, 30, 59.9):
            watch.observe({P0: AT_REST}, now)
            assert watch.suspects(now) == {}
        assert watch.suspects(60) == {P0: AT_REST}

    @pytest.mark.parametrize(
        "progress",
        [AT_REST._replace(position=8), AT_REST._replace(unfinished=1), AT_REST._replace(epoch=2)],
        ids=["received", "done", "assigned anew"],
    )
    def test_any_progress_begins_its_time_anew(self, progress: Progress) -> None:
        watch = StuckWatch(60)
        watch.observe({P0: AT_REST, P1: AT_REST}, 0)
        watch.observe({P0: progress, P1: AT_REST}, 50)
        assert watch.suspects(60) == {P1: AT_REST}
        assert set(watch.suspects(110)) == {P0, P1}

    def test_one_that_is_paused_or_gone_for_a_moment_begins_anew(self) -> None:
        watch = StuckWatch(60)
        watch.observe({P0: AT_REST}, 0)
        watch.observe({}, 50)
        watch.observe({P0: AT_REST}, 51)
        assert watch.suspects(100) == {}

    def test_one_that_was_cleared_is_suspected_again_later(self) -> None:
        watch = StuckWatch(60)
        watch.observe({P0: AT_REST}, 0)
        watch.clear([P0, P1], 60)
        assert watch.suspects(119) == {}
        assert watch.suspects(120) == {P0: AT_REST}


class Kafka:
    """What the group gives, and what is really there."""

    def __init__(self) -> None:
        self.there: dict[Partition, int] = {}
        self.rejoins: list[list[Partition]] = []
        self.asked: list[Mapping[Partition, int | None]] = []
        self.failing: PipelineError | None = None
        self.seen: dict[Partition, Progress] = {P0: AT_REST, P1: AT_REST}

    def readable(self, positions: Mapping[Partition, int | None]) -> dict[Partition, int]:
        self.asked.append(positions)
        if self.failing:
            raise self.failing
        return {partition: offset for partition, offset in self.there.items() if partition in positions}

    def rejoin(self, partitions: Sequence[Partition]) -> None:
        self.rejoins.append(list(partitions))
        for partition in partitions:
            self.seen[partition] = Progress(self.seen[partition].epoch + 1, None, 0)


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.stuck = 0

    def partitions_stuck(self, _queue: str, n: int = 1) -> None:  # type: ignore[override]
        self.stuck += n


class Stage:
    def __init__(self) -> None:
        self.kafka, self.clock, self.metrics = Kafka(), ManualClock(), Counted()
        self.seen = self.kafka.seen
        self.watchdog = Watchdog(
            consumer=self.kafka,  # type: ignore[arg-type]
            progress=lambda: dict(self.seen),
            probe=self.kafka,
            metrics=self.metrics,
            queue="default",
            clock=self.clock,
            patience=60,
        )

    def pass_time(self, seconds: int) -> None:
        """As the two threads do: one step a second, a look now and then."""
        for second in range(seconds):
            self.clock.advance(1)
            self.watchdog.step()
            if second % 15 == 0:
                self.watchdog.look()
        self.watchdog.look()
        self.watchdog.step()


class TestWatchdog:
    def test_idle_partitions_are_looked_at_and_left_alone(self) -> None:
        stage = Stage()
        stage.pass_time(200)
        assert stage.kafka.asked[0] == {P0: 7, P1: 7}
        assert len(stage.kafka.asked) <= 4
        assert (stage.kafka.rejoins, stage.metrics.stuck, stage.watchdog.finding()) == ([], 0, "")

    def test_busy_partitions_are_not_even_looked_at(self) -> None:
        stage = Stage()
        for position in range(100):
            stage.seen[P0] = AT_REST._replace(position=position)
            stage.seen[P1] = AT_REST._replace(unfinished=position)
            stage.pass_time(2)
        assert stage.kafka.asked == []

    def test_one_that_has_records_and_gives_none_makes_the_worker_join_anew(self) -> None:
        stage = Stage()
        stage.kafka.there = {P1: 7}
        stage.pass_time(75)
        assert stage.kafka.rejoins == [[P1]]
        assert stage.metrics.stuck == 1
        assert (
            stage.watchdog.finding() == "nothing comes from jobs.default.normal/1, though there are records"
        )
        stage.seen[P1] = Progress(2, 8, 0)
        stage.kafka.there = {}
        stage.pass_time(200)
        assert (stage.kafka.rejoins, stage.watchdog.finding()) == ([[P1]], "")

    def test_the_worker_fails_when_joining_anew_has_not_helped(self) -> None:
        stage = Stage()
        stage.kafka.there = {P1: 7}
        stage.pass_time(75)
        with pytest.raises(PartitionStuck, match="normal/1@7"):
            stage.pass_time(200)
        assert stage.kafka.rejoins == [[P1]]

    def test_one_that_is_stuck_again_at_another_record_gets_another_try(self) -> None:
        stage = Stage()
        stage.kafka.there = {P1: 7}
        stage.pass_time(75)
        stage.seen[P1], stage.kafka.there = Progress(2, 20, 0), {P1: 20}
        stage.pass_time(75)
        assert stage.kafka.rejoins == [[P1], [P1]]

    def test_one_that_went_to_another_worker_is_forgotten(self) -> None:
        stage = Stage()
        stage.kafka.there = {P1: 7}
        stage.pass_time(75)
        del stage.seen[P1]
        stage.pass_time(130)
        assert stage.watchdog.finding() == ""

    def test_an_outage_is_not_taken_for_a_stuck_partition(self) -> None:
        stage = Stage()
        stage.kafka.there = {P1: 7}
        stage.kafka.failing = BrokerUnavailable("no answer")
        stage.pass_time(300)
        assert stage.kafka.rejoins == []

    def test_what_was_found_counts_for_nothing_once_there_was_progress(self) -> None:
        stage = Stage()
        stage.pass_time(59)
        stage.clock.advance(2)
        stage.kafka.there = {P0: 7}
        stage.watchdog.look()
        stage.seen[P0] = AT_REST._replace(position=8)
        stage.watchdog.step()
        assert stage.kafka.rejoins == []
