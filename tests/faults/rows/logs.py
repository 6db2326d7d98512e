"""What Kafka does to a topic behind everybody's back: records are deleted, offsets lost, topics removed, partitions added."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline import PublishFailed
from pipeline.core.offsets import Partition
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from tests.faults.case import Case, scenario
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.processes import WorkerProcess
from tests.harness.scraping import scrape
from tests.harness.world import TENANTS, World

__all__: list[str] = []

FOUND_WITHIN = 60.0  # new partitions


# --- 35


@scenario(35, "retention")
def a_retry_topic_keeps_records_too_short(case: Case) -> None:
    _refused(case, {"retention.ms": "60000"}, "keeps records for 60 s, and its jobs may wait 4 s")


@scenario(35, "compacted")
def a_retry_topic_is_compacted(case: Case) -> None:
    _refused(case, {"cleanup.policy": "compact"}, "has cleanup.policy compact")


def _refused(case: Case, config: dict[str, str], said: str) -> None:
    """No worker starts on a topic that would delete waiting jobs."""
    world = case.world()
    topic = world.names.retry("default", 4)
    world.admin.set_config(topic, config)
    worker = world.start_worker()
    assert worker.wait() == 1
    assert f"pipeline: topic {topic} {said}" in worker.tail()
    assert "Traceback" not in worker.tail()


@scenario(35, "expired")
def retries_expire_while_all_workers_are_away(case: Case) -> None:
    """That is told and counted; the others run."""
    world = case.world(settings={"retry.tiers": [1, 10]}, policy=Policy(base=10.0))
    topic = world.names.retry("default", 10)
    first = world.start_worker()
    world.wait("the group has a place in each partition", lambda: _places(world, topic) == {0})
    jobs = world.publish(world.jobs.plain, [Task(name=f"shaky-{n}", fails=1) for n in range(30)])
    world.wait(
        "all wait for their retry", lambda: list(world.states().values()) == [JobState.RETRYING] * len(jobs)
    )
    assert first.stop() == 0
    found = world.admin.group_lag(world.group, [topic])
    lost = delete_records(world, {place: at.end // 2 for place, at in found.items() if at.end})
    second = world.start_worker(worker__http_port=0)
    world.wait("the others are done", lambda: _completed(world) == len(jobs) - lost)
    _assert_told(second, topic, lost)
    world.wait_committed()
    case.figures.notes["records told as expired"] = lost


@scenario(35, "long wait")
def a_wait_is_longer_than_a_topic_keeps_records(case: Case) -> None:
    """It is made of several. Records may wait 5 s here: what the topics keep, less the outage that they must outlast."""
    world = case.world(
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


# --- 36


@scenario(36, "expired")
def the_committed_offset_has_expired(case: Case) -> None:
    """How many records are gone is told and counted, and reading goes on at the first one that is left."""
    world = case.world()
    topic = world.names.main("default")
    first = world.start_worker()
    world.publish(world.jobs.plain, [Task(name=f"before-{n}") for n in range(30)])
    world.wait_ended()
    assert first.stop() == 0
    jobs = world.publish(world.jobs.plain, [Task(name=f"after-{n}") for n in range(60)])
    found = world.admin.group_lag(world.group, [topic])
    middle = {place: ((at.committed or 0) + at.end) // 2 for place, at in found.items()}
    lost = delete_records(world, middle)
    second = world.start_worker(worker__http_port=0)
    left = [job for job in jobs if job.offset >= middle[Partition(job.topic, job.partition)]]
    assert len(left) == len(jobs) - lost
    world.wait_ended(left)
    world.wait_committed()
    assert_runs(world, left)
    _assert_told(second, topic, lost)
    case.figures.notes["records told as expired"] = lost


@scenario(36, "expired under a worker")
def records_expire_before_a_running_worker_has_fetched_them(case: Case) -> None:
    """The same, though its client goes on at the first record that is left without a word."""
    world = case.world(settings={"worker.buffer_jobs": 20, "worker.concurrency": 2})
    topic = world.names.main("default")
    worker = world.start_worker(worker__http_port=0)
    jobs = world.publish(
        world.jobs.plain,
        [Task(name=f"held-{n}" + "x" * 20_000, gate="go") for n in range(3000)],
        tenant="tenant-1",
    )
    world.wait("two run", lambda: len(world.executions()) == 2)
    last = jobs[-1]
    lost_before = last.offset - 10
    delete_records(world, {Partition(topic, last.partition): lost_before})
    world.open("go")
    world.wait_ended(jobs[-10:])
    world.wait_committed()
    run = {execution.job_id for execution in world.executions()}
    lost = sum(job.job_id not in run for job in jobs)
    assert lost, "all were fetched before: this shows nothing"
    world.wait("it is told", lambda: worker.said("expired"))
    _assert_told(worker, topic, lost)
    case.figures.notes["records told as expired"] = lost


@scenario(36, "beyond the end")
def the_committed_offset_lies_beyond_the_end(case: Case) -> None:
    """The topic is read from its beginning, which is told, and jobs that have run are recognised."""
    world = case.world()
    topic = world.names.main("default")
    first = world.start_worker()
    jobs = world.publish(world.jobs.effect, [Task(name=f"before-{n}") for n in range(30)])
    world.wait_ended()
    assert first.stop() == 0
    ends = world.admin.end_offsets([topic])
    beyond = {place: end + 100 for place, end in ends.items()}
    world.wait("the group is empty, and its offsets can be set", lambda: _can_commit(world, beyond))
    jobs += world.publish(world.jobs.effect, [Task(name=f"after-{n}") for n in range(30)])
    second = world.start_worker()
    world.wait_ended()
    world.wait(
        "its place is right again",
        lambda: _places(world, topic) <= set(world.admin.end_offsets([topic]).values()),
    )
    world.wait_committed()
    told = [entry for entry in second.said("expired") if entry["topic"] == topic]
    assert [entry["level"] for entry in told] == ["WARNING"] * len(ends)
    assert_runs(world, jobs)
    assert_nothing_lost(world)
    assert_clean_end(world)


# --- 37


@scenario(37, "deleted")
def a_topic_is_deleted_under_a_worker(case: Case) -> None:
    """It says so and ends; with the topic made anew, work goes on, once the publisher has looked for the topic again, too."""
    world = case.world()
    topic = world.names.main("default")
    worker = world.start_worker()
    before = world.publish(world.jobs.effect, [Task(name=f"before-{n}") for n in range(9)])
    world.wait_ended(before)
    world.wait_committed()
    worker.may_end = True
    world.admin.delete([topic])
    assert worker.wait(timeout=FOUND_WITHIN) == 1
    assert f"topic {topic} was deleted: `pipeline topics apply` creates it" in worker.tail()
    assert world.cli("topics", "apply").code == 0
    world.start_worker()
    after: list[Acked] = []
    world.wait("the publisher knows it again", lambda: _is_taken(world, after), timeout=FOUND_WITHIN)
    after += world.publish(world.jobs.effect, [Task(name=f"after-{n}") for n in range(9)])
    world.wait_ended(after)
    assert_runs(world, before + after)


def _is_taken(world: World, published: list[Acked]) -> bool:
    try:
        published += world.publish(world.jobs.effect, [Task(name="first after")])
    except PublishFailed:
        return False
    return True


@scenario(37, "partitions added")
def partitions_are_added_under_a_worker(case: Case) -> None:
    """Its new ones are read from their first record on."""
    world = case.world()
    topic = world.names.main("default")
    world.start_worker()
    with world.sampler() as sampler:
        before = world.publish(world.jobs.effect, [Task(name=f"before-{n}") for n in range(9)])
        world.wait_ended(before)
        world.admin.add_partitions(topic, 6)
        began = time.monotonic()
        moved: list[Acked] = []
        world.wait("the publisher knows them", lambda: _moved(world, moved), timeout=FOUND_WITHIN)
        world.wait_ended(timeout=FOUND_WITHIN)
        case.figures.notes["seconds until new partitions are worked on"] = round(time.monotonic() - began, 1)
        world.wait_committed()
    assert_runs(world, before + moved)
    case.judge_world(world, sampler)


def _moved(world: World, published: list[Acked]) -> bool:
    """Publish one more; whether one of the last nine went to a new partition."""
    tenant = TENANTS[len(published) % len(TENANTS)]
    published += world.publish(world.jobs.effect, [Task(name=f"moved-{len(published)}")], tenant=tenant)
    return any(job.partition >= 3 for job in published[-len(TENANTS) :])


# --- what is done to the log, and what was told


def delete_records(world: World, before: Mapping[Partition, int]) -> int:
    """What retention does, at a moment of the test's choice. Gives how many of them the group had not committed."""
    found = world.admin.group_lag(world.group, list({place.topic for place in before}))
    client = AdminClient({"bootstrap.servers": world.servers.bootstrap_servers})
    asked = client.delete_records([TopicPartition(*place, offset) for place, offset in before.items()])
    for future in asked.values():
        future.result(10)
    return sum(max(0, offset - (found[place].committed or 0)) for place, offset in before.items())


def _can_commit(world: World, offsets: Mapping[Partition, int]) -> bool:
    """As by a careless operator: Kafka takes it while the group has no member."""
    client = Consumer({"bootstrap.servers": world.servers.bootstrap_servers, "group.id": world.group})
    asked = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    try:
        client.commit(offsets=asked, asynchronous=False)
    except KafkaException:
        return False
    finally:
        client.close()
    return True


def _places(world: World, topic: str) -> set[int | None]:
    return {position.committed for position in world.admin.group_lag(world.group, [topic]).values()}


def _completed(world: World) -> int:
    return list(world.states().values()).count(JobState.COMPLETED)


def _assert_told(worker: WorkerProcess, topic: str, lost: int) -> None:
    told = worker.said("expired")
    assert {(entry["level"], entry["topic"]) for entry in told} == {("CRITICAL", topic)}
    assert sum(entry["records"] for entry in told) == lost
    assert scrape(worker)["pipeline_records_expired_total"] == lost
