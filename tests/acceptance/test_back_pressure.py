"""A slow handler behind a small buffer: fetching stops and goes on, the worker stays in its group."""

from __future__ import annotations

import time

import pytest

from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each, assert_runs
from tests.harness.jobs import Task
from tests.harness.scraping import scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers

BUFFER, BATCH = 10, 5
LONGER_THAN_ANY_PATIENCE = 8.0  # than the session of 6 s, and than 7 s between polls


def test_a_full_buffer_stops_fetching_until_there_is_room_and_the_worker_stays_in_its_group(
    world: World,
) -> None:
    world.settings |= {
        "worker.buffer_jobs": BUFFER,
        "worker.poll_batch": BATCH,
        "worker.concurrency": 2,
        "worker.max_poll_interval": 7,
    }
    stuck = world.publish(world.jobs.effect, [Task(name=f"stuck-{n}", gate="go") for n in range(9)])
    many = world.publish(world.jobs.effect, [Task(name=f"many-{n}", seconds=0.01) for n in range(150)])
    worker = world.start_worker(worker__http_port=0)
    world.wait("its hands are full", lambda: len(world.executions()) == 2)
    since = time.monotonic()
    fills: list[float] = []

    def look() -> bool:
        fills.append(scrape(worker)["pipeline_buffer_fill"])
        return max(fills) >= 1.0 and time.monotonic() - since > LONGER_THAN_ANY_PATIENCE

    world.wait("it is full, and the group would have given it up", look)
    assert len(world.executions()) == 2
    assert max(fills) <= (BUFFER + BATCH) / BUFFER
    world.open("go")
    world.wait_ended()
    world.wait_committed()
    assert scrape(worker)["pipeline_buffer_fill"] <= (BUFFER + BATCH) / BUFFER
    assert_runs(world, stuck + many)  # nobody else got its partitions, so nothing came twice
    assert not worker.said("revoked")
    assert not worker.said("lost")
    assert_nothing_lost(world)
    assert_one_effect_each(world)
    assert_clean_end(world)
