"""Retry topics that delete what waits in them: refused, or noticed; and waits that are longer than a topic keeps records."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline.core.offsets import Partition
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from tests.acceptance.conftest import NewWorld
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.scraping import scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers


def delete_records(world: World, before: Mapping[Partition, int]) -> None:
    """What retention does, at a moment of the test's choice."""
    client = AdminClient({"bootstrap.servers": world.servers.bootstrap_servers})
    asked = client.delete_records([TopicPartition(*place, offset) for place, offset in before.items()])
    for future in asked.values():
        future.result(10)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"retention.ms": "60000"}, "keeps records for 60 s, and its jobs may wait 4 s"),
        ({"cleanup.policy": "compact"}, "has cleanup.policy compact"),
    ],
)
def test_a_worker_does_not_start_on_a_topic_that_would_delete_waiting_jobs(
    world: World, config: dict[str, str], said: str
) -> None:
    topic = world.names.retry("default", 4)
    world.admin.set_config(topic, config)
    worker = world.start_worker()
    assert worker.wait() == 1
    tail = worker.tail()
    assert f"pipeline: topic {topic} {said}" in tail
    assert "Traceback" not in tail


def test_retries_that_expired_are_told_and_counted_and_the_others_run(new_world: NewWorld) -> None:
    world = new_world(settings={"retry.tiers": [1, 10]}, policy=Policy(base=10.0))
    topic = world.names.retry("default", 10)
    first = world.start_worker()

    def places() -> set[int | None]:
        return {position.committed for position in world.admin.group_lag(world.group, [topic]).values()}

    world.wait(
        "the group has a place in each partition, though none has a record yet", lambda: places() == {0}
    )
    jobs = world.publish(world.jobs.plain, [Task(name=f"shaky-{n}", fails=1) for n in range(30)])
    world.wait(
        "all wait for their retry",
        lambda: list(world.states().values()) == [JobState.RETRYING] * len(jobs),
    )
    assert first.stop() == 0
    found = world.admin.group_lag(world.group, [topic])
    deleted = {place: at.end // 2 for place, at in found.items() if at.end}
    delete_records(world, deleted)
    second = world.start_worker(worker__http_port=0)
    lost = sum(deleted.values())
    world.wait(
        "the others are done",
        lambda: list(world.states().values()).count(JobState.COMPLETED) == len(jobs) - lost,
    )
    told = second.said("expired")
    assert {(entry["level"], entry["topic"]) for entry in told} == {("CRITICAL", topic)}
    assert sum(entry["records"] for entry in told) == lost
    assert scrape(second)["pipeline_records_expired_total"] == lost
    world.wait_committed()


def test_a_wait_that_is_longer_than_a_topic_keeps_records_is_made_of_several(new_world: NewWorld) -> None:
    """Records may wait 5 s here: what the topics keep, less the outage that they must outlast."""
    world = new_world(
        settings={"topics.retry_retention": 3600, "retry.outage_allowance": 3595},
        policy=Policy(max_attempts=2, base=12.0),
    )
    jobs = world.publish(world.jobs.plain, [Task(name=f"shaky-{n}", fails=1) for n in range(5)])
    world.start_worker()
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, jobs, attempts=[1, 2])
    for job in jobs:
        before, after = world.executions(job_id=job.job_id)
        assert after.started - before.ended >= 12.0
        outcomes = [run.outcome for run in world.story(job.job_id).attempts]
        assert outcomes == [AttemptOutcome.FAILED, AttemptOutcome.SNOOZED, AttemptOutcome.SNOOZED]
    assert_nothing_lost(world)
    assert_clean_end(world)
