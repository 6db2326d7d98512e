"""What the intake stops fetching: only what is full, and only for as long."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.adapters.memory_broker import MemoryBroker, MemoryJobConsumer
from pipeline.core.clock import ManualClock
from pipeline.core.headers import job_headers
from pipeline.core.job import Job
from pipeline.core.offsets import Partition
from pipeline.core.partitioner import partition_of
from pipeline.core.ports import Outgoing
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.events import EventSink
from pipeline.runtime.held import Limits
from pipeline.runtime.intake import Intake, IntakeSettings
from tests.unit.runtime_parts import LANES, MAIN, RETRY, clock_at, new_job

ORDERED, MAIL = "ledger.post", "email.send"
# Two tenants whose jobs lie in different partitions.
TENANTS = {
    partition_of(name.encode(), 2): name for name in ("acme", "globex", "initech", "umbrella", "hooli")
}
HOURS = "jobs.default.retry.1h"
P0, P1 = Partition(MAIN, 0), Partition(MAIN, 1)


class Told(EventSink):
    """Events of which Kafka has everything at once."""

    def __init__(self) -> None: ...

    def seal(self) -> int:
        return 0

    def acknowledged(self, period: int, *, timeout: float = 0.0) -> bool:  # noqa: ARG002 - as the real one is asked
        return True


class Watched:
    """A consumer that notes which partitions are paused."""

    def __init__(self, inner: MemoryJobConsumer) -> None:
        self._inner = inner
        self.paused: set[Partition] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def pause(self, partitions: list[Partition]) -> None:
        self.paused.update(partitions)
        self._inner.pause(partitions)

    def resume(self, partitions: list[Partition]) -> None:
        self.paused.difference_update(partitions)
        self._inner.resume(partitions)


def _is_retry(topic: str) -> bool:
    return ".retry." in topic


class Stage:
    """An intake over the broker in memory, two partitions of each topic, driven by hand."""

    def __init__(self, limits: Limits, *, poll_batch: int = 1, topics: Sequence[str] = (MAIN,)) -> None:
        self.clock: ManualClock = clock_at()
        self.broker = MemoryBroker(self.clock)
        for topic in topics:
            self.broker.create_topic(topic, 2)
        self.consumer = Watched(self.broker.consumer("workers"))
        self.buffer = Buffer(
            BufferSettings(lanes=LANES, lane_of=lambda _: LANES[0], is_retry=_is_retry, in_order=[ORDERED])
        )
        self.intake = Intake(
            consumer=self.consumer,  # type: ignore[arg-type]
            buffer=self.buffer,
            settings=IntakeSettings(poll_batch, commit_interval=1e9, revoke_timeout=0, limits=limits),
            queue_of=lambda _: "default",
            is_retry=_is_retry,
            clock=self.clock,
            events=Told(),
        )
        self.consumer.subscribe(topics, self.intake)  # type: ignore[operator]

    def publish(
        self, partition: int, count: int, *, job_type: str = ORDERED, topic: str = MAIN, wait: float = 0.0
    ) -> None:
        for _ in range(count):
            due_at = self.clock.time() + wait if wait else 0.0
            job: Job = new_job(job_type=job_type, tenant=TENANTS[partition], not_before=due_at)
            headers = job_headers(job, ce_time="2027-01-15T08:00:00+00:00")
            self.broker.producer().send(Outgoing(topic, job.tenant.encode(), b"{}", headers))

    def step(self, times: int = 1) -> int:
        fetched = 0
        for _ in range(times):
            self.clock.advance(1)
            fetched += self.intake.step()
        return fetched

    def finish(self, most: int = 1000) -> None:
        self.buffer.done(self.buffer.take(LANES[0], most, self.clock.time()))


def test_a_key_that_waits_stops_only_its_partition_and_only_when_much_waits_behind_it() -> None:
    stage = Stage(Limits(jobs=100, bytes=10**9, waiting=5))
    stage.publish(0, 30)
    stage.step(6)
    assert stage.consumer.paused == {P0}
    assert stage.buffer.aside().jobs == 5
    stage.publish(1, 3, job_type=MAIL)
    assert stage.step(5) == 3
    for _ in range(40):
        stage.finish()
        stage.step()
    assert stage.consumer.paused == set()
    assert stage.buffer.take_commits() == {P0: 30, P1: 3}


def test_jobs_that_wait_for_their_key_may_take_their_bytes_and_no_more() -> None:
    stage = Stage(Limits(jobs=100, bytes=2_500, waiting=1_000))
    stage.publish(0, 30)
    stage.step(10)
    assert stage.consumer.paused == {P0}
    assert stage.buffer.aside().jobs == 3
    assert stage.buffer.load().jobs == 1


def test_a_partition_waits_for_its_first_unfinished_job_when_too_much_is_done_beyond_it() -> None:
    stage = Stage(Limits(jobs=100, bytes=10**9, waiting=100, ahead=10), poll_batch=100)
    stage.publish(0, 30, job_type=MAIL)
    stage.publish(1, 30, job_type=MAIL)
    stage.step()
    (slow, *others) = stage.buffer.take(LANES[0], 1000, stage.clock.time())
    stage.buffer.done(others)
    stage.step()
    assert stage.consumer.paused == {slow.partition}
    stage.buffer.done([slow])
    stage.step()
    assert stage.consumer.paused == set()


def test_a_mass_of_retries_stops_only_partitions_that_hold_more_than_their_share() -> None:
    """Those of another tier are due long before: they are read, and run, while the mass waits."""
    stage = Stage(Limits(jobs=100, bytes=10**9, waiting=20), topics=(MAIN, RETRY, HOURS))
    stage.publish(0, 100, topic=HOURS, wait=3600, job_type=MAIL)
    stage.step(22)
    assert stage.consumer.paused == {Partition(HOURS, 0)}
    assert stage.buffer.load().waiting == 20
    stage.publish(0, 4, topic=RETRY, wait=5, job_type=MAIL)
    stage.publish(1, 2, topic=HOURS, wait=5, job_type=MAIL)
    assert stage.step(12) == 6
    stage.finish()
    stage.step()
    assert stage.buffer.load().waiting == 20
    assert stage.consumer.paused == {Partition(HOURS, 0)}


def test_retries_may_take_the_bytes_of_main_topics_once_more_and_those_of_another_tier_their_share() -> None:
    stage = Stage(Limits(jobs=100, bytes=10_000, waiting=1_000), topics=(MAIN, RETRY, HOURS))
    stage.publish(0, 100, topic=HOURS, wait=3600, job_type=MAIL)
    stage.step(40)
    assert stage.consumer.paused == {Partition(HOURS, 0)}
    full = stage.buffer.load()
    assert full.waiting < 20
    assert 10_000 <= full.waiting_bytes < 12_000
    stage.publish(0, 2, topic=RETRY, wait=5, job_type=MAIL)
    assert stage.step(6) == 2
    stage.publish(1, 3)
    assert stage.step(6) == 3, "main topics go on"


def test_a_mass_in_every_partition_takes_twice_the_room_at_most_and_goes_on_as_it_runs() -> None:
    stage = Stage(Limits(jobs=100, bytes=10**9, waiting=20), topics=(MAIN, RETRY, HOURS))
    stage.publish(0, 100, topic=HOURS, wait=3600, job_type=MAIL)
    stage.step(22)
    for partition, topic in ((1, HOURS), (0, RETRY), (1, RETRY)):
        stage.publish(partition, 100, topic=topic, wait=3600, job_type=MAIL)
    stage.step(25)
    assert stage.consumer.paused == {
        Partition(topic, number) for topic in (RETRY, HOURS) for number in (0, 1)
    }
    assert stage.buffer.load().waiting <= 40
    stage.clock.advance(3600)
    done = 0
    while stage.buffer.load().waiting:
        stage.finish()
        stage.step(6)
        done += 1
        assert done < 200
    assert stage.consumer.paused == set()
    assert sum(stage.buffer.take_commits().values()) == 400
