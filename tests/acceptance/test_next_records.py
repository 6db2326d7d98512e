"""Next records that cannot be written, or hardly: nothing is passed over, and nobody else is held up."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from pipeline.core.job import Record
from pipeline.core.parked import is_parked
from pipeline.core.state import JobState
from tests.acceptance.conftest import NewWorld
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.world import World

pytestmark = pytest.mark.servers

LIMIT = 3000


def blob(characters: int) -> str:
    """Text that no compression makes smaller than about half."""
    rng = random.Random(4)
    return "".join(rng.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(characters))


def header(record: Record, name: str) -> str:
    (value,) = [content for found, content in record.headers if found == name]
    return (value or b"").decode()


def letter_of(world: World, job: Acked) -> Record:
    (letter,) = [letter for letter in world.letters() if header(letter, "ce_id") == job.job_id]
    return letter


def assert_parked_whole(world: World, job: Acked, *, reason: str) -> None:
    """The letter is a small reference, and the store has the record as it was fetched."""
    letter = letter_of(world, job)
    assert is_parked(letter)
    assert (letter.value, header(letter, "pipeline-reason")) == (b"", reason)
    with closing(world.jobs.app.parking()) as parking:
        parked = parking.load(job.job_id, int(header(letter, "pipeline-hop")))
    assert parked is not None
    (published,) = [
        r for r in world.records(job.topic) if (r.partition, r.offset) == (job.partition, job.offset)
    ]
    assert parked.record == published
    assert parked.reason == reason


def test_what_is_too_large_for_its_topic_is_parked_and_its_neighbours_are_not_harmed(
    new_world: NewWorld,
) -> None:
    world = new_world(policy=Policy(max_attempts=2))
    for topic in (*world.topics[1:], world.names.dlq("default")):
        world.admin.set_config(topic, {"max.message.bytes": str(LIMIT)})
    large = Task(name=f"large-{blob(20_000)}", fails=1)
    retried = world.publish(world.jobs.plain, [large] * 3, tenant="acme")
    ordinary = world.publish(
        world.jobs.plain, [Task(name=f"small-{n}", fails=1) for n in range(40)], tenant="acme"
    )
    done = world.publish(
        world.jobs.plain, [Task(name=f"large-{blob(20_000)}-{n}") for n in range(5)], tenant="acme"
    )
    worker = world.start_worker()
    world.wait_ended()
    world.wait_committed()
    for job in retried:
        story = world.story(job.job_id)
        assert (story.state, story.reason, story.attempt) == (JobState.DEAD, "too_large", 1)
        (run,) = story.attempts
        assert run.failure is not None
        assert (
            run.failure.error_class == "tests.harness.handlers.ToldToFail"
        )  # what it failed of, not of what it died
        assert_parked_whole(world, job, reason="too_large")
    assert_runs(world, retried)
    assert_runs(world, ordinary, attempts=[1, 2])
    assert_runs(world, done)
    assert len(worker.said("parked")) == len(retried)
    assert_nothing_lost(world)
    assert_clean_end(world)


def test_a_letter_that_is_too_large_is_parked_under_the_reason_that_its_job_died_of(
    new_world: NewWorld,
) -> None:
    world = new_world(policy=Policy(max_attempts=1))
    world.admin.set_config(world.names.dlq("default"), {"max.message.bytes": str(LIMIT)})
    (job,) = world.publish(world.jobs.effect, [Task(name=blob(20_000), fails=-1)])
    world.start_worker()
    world.wait_ended()
    world.wait_committed()
    assert_parked_whole(world, job, reason="max_attempts")
    assert_clean_end(world)
