"""What a real worker tells over HTTP."""

from __future__ import annotations

import pytest

from tests.harness.checks import assert_clean_end
from tests.harness.jobs import Task
from tests.harness.scraping import get, scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers


def test_a_worker_counts_what_it_did(world: World) -> None:
    world.publish(world.jobs.effect, [Task(name=f"sound-{n}") for n in range(10)], keyed=True)
    world.publish(world.jobs.effect, [Task(name="sound-0")], tenant="tenant-0", keyed=True)
    world.publish(world.jobs.asynchronous, [Task(name=f"shaky-{n}", fails=1) for n in range(2)])
    world.publish(world.jobs.plain, [Task(name="broken", fails=-1)])
    worker = world.start_worker(worker__http_port=0)
    world.wait_ended()
    world.wait_committed()
    # Gauges are set once a second, and may yet show what was a moment ago.
    world.wait("the gauges are set", lambda: not any(scrape(worker)[f"pipeline_{name}"] for name in AT_REST))
    found = scrape(worker)
    counted = {name: found[f"pipeline_{name}_total"] for name in EXPECTED}
    assert counted == EXPECTED
    assert found["pipeline_job_processing_seconds_count"] == 17
    assert found["pipeline_job_waiting_seconds_count"] == 17
    assert not any(found[f"pipeline_{name}"] for name in AT_REST)
    text = get(worker, "/metrics").body
    assert (
        'pipeline_jobs_dead_total{job_type="work.plain",outcome="max_attempts",queue="default"} 1.0' in text
    )
    assert "tenant=" not in text
    # It is counted at the start and then now and then.
    world.wait("the letter is counted", lambda: scrape(worker)["pipeline_dlq_depth"] == 1)
    assert_clean_end(world)


AT_REST = ("queue_lag", "jobs_running")
# 10 + 2 completed at the first and the second attempt, 1 dead after three.
EXPECTED = {
    "jobs_claimed": 17,
    "jobs_completed": 12,
    "jobs_failed": 5,
    "jobs_retried": 4,
    "jobs_dead": 1,
    "jobs_duplicates": 1,
    "settles_fenced": 0,
}


def test_a_worker_is_ready_until_it_drains_and_alive_until_it_ends(world: World) -> None:
    world.publish(world.jobs.plain, [Task(name="held", gate="go")])
    worker = world.start_worker(worker__http_port=0)
    world.wait("it runs", lambda: len(world.executions()) == 1)
    assert get(worker, "/livez").status == 200
    ready = get(worker, "/readyz")
    assert (ready.status, ready.json()["ok"]) == (200, True)
    worker.terminate()
    world.wait("it is not ready any more", lambda: get(worker, "/readyz").status == 503)
    assert get(worker, "/readyz").json()["checks"]["stopping"] == "draining"
    assert get(worker, "/livez").status == 200
    world.open("go")
    assert worker.wait() == 0
    assert_clean_end(world)
