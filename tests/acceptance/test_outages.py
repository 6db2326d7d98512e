"""Postgres or Kafka goes away and comes back: work goes on, and no job pays for it."""

from __future__ import annotations

import pytest

from pipeline.core.headers import parse_job
from pipeline.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.acceptance.conftest import NewWorld
from tests.harness.checks import (
    assert_clean_end,
    assert_nothing_lost,
    assert_offsets_held,
    assert_one_effect_each,
)
from tests.harness.jobs import Task
from tests.harness.stream import PublishStream
from tests.harness.world import World
from tests.servers import TestServers

pytestmark = pytest.mark.servers

HOW = ["stop", "kill"]
# What a refused publish may take beyond its time limit on a loaded machine of two cores.
SLACK = 10.0


@pytest.mark.parametrize("how", HOW)
def test_postgres_goes_away_and_comes_back(
    new_world: NewWorld, servers: TestServers, own_postgres: EmbeddedPostgres, how: str
) -> None:
    world = new_world(TestServers(servers.bootstrap_servers, own_postgres.dsn))
    workers = [world.start_worker() for _ in range(2)]
    with world.sampler() as sampler, PublishStream(world, world.jobs.effect, _short) as stream:
        _wait_until_all_work(world)
        world.publish(world.jobs.asynchronous, [Task(name=f"async-{n}", seconds=1) for n in range(10)])
        getattr(own_postgres, how)()
        before = len(stream.acked)
        _wait_until_idle(world)
        _publishing_goes_on(world, stream, before)
        own_postgres.start()
        done = len(world.effects())
        world.wait("work goes on", lambda: len(world.effects()) >= done + 100)
    world.wait_ended()
    world.wait_committed()
    assert all(worker.running for worker in workers)
    _assert_nobody_paid(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def _wait_until_all_work(world: World) -> None:
    def all_work() -> bool:
        return all(len(world.executions(pid=worker.pid)) >= 15 for worker in world.workers)

    world.wait("all work", all_work)


def _wait_until_idle(world: World) -> None:
    """Without the store nothing new is started: what was started has ended, and nothing follows."""
    world.wait("all noticed", lambda: all(len(w.said("heartbeat_failed")) >= 2 for w in world.workers))
    world.wait("what ran has ended", lambda: all(run.ended for run in world.executions()))


def _publishing_goes_on(world: World, stream: PublishStream, before: int) -> None:
    runs = len(world.executions())
    world.wait("publishing goes on", lambda: len(stream.acked) >= before + 50)
    assert stream.failed == []
    assert len(world.executions()) == runs


@pytest.mark.parametrize("how", HOW)
def test_kafka_goes_away_and_comes_back(
    new_world: NewWorld, servers: TestServers, own_kafka: EmbeddedKafka, how: str
) -> None:
    world = new_world(
        TestServers(own_kafka.bootstrap_servers, servers.postgres_dsn), settings={"publisher.timeout": 2}
    )
    workers = [world.start_worker() for _ in range(2)]
    with world.sampler() as sampler, PublishStream(world, world.jobs.effect, _short) as stream:
        _wait_until_all_work(world)
        getattr(own_kafka, how)()
        world.wait("a publish is refused", lambda: stream.failed)
        own_kafka.start()
        done = len(world.effects())
        world.wait("work goes on", lambda: len(world.effects()) >= done + 100)
    world.wait_ended()
    world.wait_committed()
    assert all(worker.running for worker in workers)
    assert max(stream.failed) < float(str(world.settings["publisher.timeout"])) + SLACK
    _assert_no_false_success(world)
    _assert_nobody_paid(world)
    assert_offsets_held(world, sampler.samples)
    assert_clean_end(world)


def _assert_no_false_success(world: World) -> None:
    """Each acknowledged job lies where the publisher was told that it lies."""
    records = {(r.topic, r.partition, r.offset): r for r in world.records(world.names.main("default"))}
    for acked in world.acked():
        record = records[acked.topic, acked.partition, acked.offset]
        assert parse_job(record, queue="default").job.job_id == acked.job_id


def _assert_nobody_paid(world: World) -> None:
    """A job may have been started again. It was the same attempt, and had one effect."""
    assert {run.attempt for run in world.executions()} == {1}
    assert world.letters() == []
    assert_nothing_lost(world)
    assert_one_effect_each(world)


def _short(number: int) -> Task:
    return Task(name=f"short-{number}", seconds=0.01)
