"""What a job type needs breaks: its jobs wait without burning attempts, one probe decides, others go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from pipeline.core.breaker import BreakerState
from pipeline.core.state import JobState
from pipeline.core.story import AttemptOutcome
from tests.acceptance.conftest import NewWorld
from tests.harness.checks import assert_clean_end, assert_nothing_lost
from tests.harness.jobs import Task
from tests.harness.ledger import Acked, Execution, Ledger
from tests.harness.processes import WorkerProcess
from tests.harness.scraping import scrape
from tests.harness.world import World

pytestmark = pytest.mark.servers

CONCURRENCY = 4
WORKERS = 2


@dataclass
class Dependency:
    """A world with workers whose jobs need something, and that something."""

    world: World
    options: dict[str, Any]

    def set(self, mode: str) -> None:
        """From now on its users' runs end so; empty: well."""
        path = self.world.folder / "mode"
        if not mode:
            path.unlink(missing_ok=True)
            return
        fresh = self.world.folder / "mode.new"
        fresh.write_text(mode)
        fresh.rename(path)

    def start_worker(self, **settings: Any) -> WorkerProcess:
        return self.world.start_worker(
            target="tests.acceptance.dependency_app:app",
            environment={"DEPENDENCY_OPTIONS": json.dumps(self.options)},
            **{"worker__concurrency": CONCURRENCY, **settings},
        )

    def publish(self, count: int, *, light: bool = False, seconds: float = 0.01) -> list[Acked]:
        job_type = self.world.jobs.plain if light else self.world.jobs.effect
        name = "light" if light else "needy"
        tasks = [Task(name=f"{name}-{number}", seconds=seconds) for number in range(count)]
        return self.world.publish(job_type, tasks)

    def state(self) -> BreakerState:
        found = self.world.execute(
            f'select state from "{self.world.name}".breakers where job_type = %s', "work.effect"
        )
        return BreakerState(found[0][0]) if found else BreakerState.CLOSED

    def prober(self) -> int:
        """The process of the worker whose probe is under way; 0 when there is none."""
        found = self.world.execute(
            f'select prober from "{self.world.name}".breakers where job_type = %s', "work.effect"
        )
        return int(found[0][0].split("-")[-2]) if found and found[0][0] else 0

    def lease_end(self) -> float:
        """Until when the probe that is under way is its prober's; epoch seconds."""
        found = self.world.execute(
            f'select extract(epoch from probe_until) from "{self.world.name}".breakers where job_type = %s',
            "work.effect",
        )
        return float(found[0][0])

    def wait_state(self, state: BreakerState, *, timeout: float = 40.0) -> None:
        self.world.wait(f"the breaker is {state}", lambda: self.state() is state, timeout=timeout)

    def changes(self) -> list[tuple[str, str, str]]:
        """What the audit trail has of the breaker: from which state to which, and by whom, in order."""
        told = [event for event in self.world.events() if "previous" in event]
        assert {event["job_type"] for event in told} <= {"work.effect"}
        told.sort(key=lambda event: event["at"])
        return [(event["previous"], event["state"], event["by"]) for event in told]

    def runs(self, since: float = 0.0) -> list[Execution]:
        """Those that need it, by when they began."""
        return [
            run for run in self.world.executions() if run.job_type == "work.effect" and run.started >= since
        ]

    def hanging(self) -> list[Execution]:
        """Those that have found it hanging."""
        found = {
            (entry["job_id"], entry["token"]) for entry in Ledger(self.world.folder / "hanging").entries()
        }
        return [run for run in self.runs() if (run.job_id, run.token) in found]


NewDependency = Callable[..., Dependency]


@pytest.fixture
def new_dependency(new_world: NewWorld) -> NewDependency:
    def make(*, settings: dict[str, object] | None = None, **options: Any) -> Dependency:
        return Dependency(new_world(settings=settings), options)

    return make


def assert_one_at_a_time(runs: list[Execution]) -> None:
    """No two of these overlapped. A run whose process was killed lasted until then, which nobody noted."""
    for before, after in pairwise(runs):
        assert before.ended == 0.0 or before.ended <= after.started, (before, after)


def assert_a_chain(changes: list[tuple[str, str]], *, tries: int) -> None:
    """From closed to open, tried some times, to closed; each change once, whoever made it."""
    assert changes[0] == ("closed", "open")
    assert changes[-1] == ("half_open", "closed")
    assert all(before[1] == after[0] for before, after in pairwise(changes)), changes
    assert changes.count(("open", "half_open")) >= tries


def broken_after_opening(needed: Dependency, count: int = 120) -> tuple[list[Acked], float]:
    """Publish into an outage; give the jobs, and a time after which only probes run."""
    needed.set("broken")
    for _ in range(WORKERS):
        needed.start_worker()
    jobs = needed.publish(count)
    needed.wait_state(BreakerState.OPEN)
    needed.world.wait(
        "both workers know",
        lambda: all(worker.said("breaker_open") for worker in needed.world.workers),
    )
    # What was claimed before may have yet to start.
    needed.world.wait(
        "what was claimed has ended", lambda: JobState.RUNNING not in needed.world.states().values()
    )
    return jobs, time.time()


def test_an_outage_opens_it_for_all_light_jobs_go_on_and_it_closes_by_itself(
    new_dependency: NewDependency,
) -> None:
    needed = new_dependency()
    world = needed.world
    jobs, known = broken_after_opening(needed)
    before = len(needed.runs())
    # In each worker: ten in a row, what ran beside them, and what was claimed ahead of it.
    assert before <= 10 + WORKERS * 6 * CONCURRENCY, before
    light = needed.publish(60, light=True)
    world.wait_ended(light)
    world.wait("it was tried several times", lambda: len(needed.runs(known)) >= 3)
    needed.set("")
    world.wait_ended(jobs)
    needed.wait_state(BreakerState.CLOSED)
    world.wait_committed()
    probes = [run for run in needed.runs(known) if run.error]  # nobody else failed meanwhile
    assert_one_at_a_time(probes)
    gaps = [after.started - before.ended for before, after in pairwise(probes)]
    assert min(gaps) >= 2.0, gaps  # never before its time
    assert_a_chain([(before, after) for before, after, _ in needed.changes()], tries=len(probes))
    for job in jobs:
        story = world.story(job.job_id)
        assert story.state is JobState.COMPLETED
        failures = [run for run in story.attempts if run.outcome is AttemptOutcome.FAILED]
        assert story.attempt == len(failures) + 1
    assert_nothing_lost(world)
    assert_clean_end(world)


@pytest.mark.parametrize("end", ["permanent", "reject", "cancel", "snooze", "timeout", "works"])
def test_whatever_the_end_of_a_probe_it_leads_on(new_dependency: NewDependency, end: str) -> None:
    needed = new_dependency(timeout=1.0)
    world = needed.world
    jobs, known = broken_after_opening(needed, count=40)
    needed.set({"timeout": "hang", "works": ""}.get(end, end))
    world.wait("a probe has ended so", lambda: [run for run in needed.runs(known) if run.error != "Broken"])
    if end in ("snooze", "timeout"):
        world.wait("more than one was tried", lambda: len(needed.runs(known)) >= 2)
        needed.set("")
    needed.wait_state(BreakerState.CLOSED)
    needed.set("")
    ends = (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    world.wait("all have ended", lambda: all(world.states().get(job.job_id) in ends for job in jobs))
    world.wait_committed()
    assert_clean_end(world)


def test_a_prober_that_is_killed_or_stopped_leaves_the_probe_to_another(
    new_dependency: NewDependency,
) -> None:
    """Which worker probes is told by the store: a job whose worker died runs in a child process of the next one."""
    needed = new_dependency()
    world = needed.world
    jobs, _ = broken_after_opening(needed, count=40)
    needed.set("hang")
    # Not one that began before, and is about to fail.
    world.wait("a probe hangs", needed.hanging)
    (hanging,) = needed.hanging()
    first, second = sorted(world.workers, key=lambda worker: worker.pid != hanging.pid)
    assert needed.prober() == first.pid
    end = needed.lease_end()
    # It is renewed while its prober lives: a whole lease later nobody else has tried.
    world.wait("the lease was renewed", lambda: needed.lease_end() > end + 5)
    assert [run.token for run in needed.runs() if not run.ended] == [hanging.token]
    killed = time.time()
    first.kill()
    world.wait("another probes", lambda: needed.prober() == second.pid and needed.runs(killed))
    # Stopped without waiting for its probe, it hands that back at once.
    third = needed.start_worker()
    world.wait("the third is there", lambda: third.said("assigned"))
    tried = len(needed.runs(killed))
    second.terminate()
    world.wait("it drains", lambda: second.said("draining"))
    second.terminate()
    assert second.wait() == 0
    assert needed.prober() != second.pid
    world.wait("the third probes", lambda: needed.prober() == third.pid and len(needed.runs(killed)) > tried)
    needed.set("")
    needed.wait_state(BreakerState.CLOSED)
    world.wait_ended(jobs)
    world.wait_committed()
    assert_nothing_lost(world)
    assert_clean_end(world)


def test_a_flood_of_dead_letters_is_stopped_and_told(new_dependency: NewDependency) -> None:
    """A release under which every job dies costs a hundred letters or so, not the whole topic."""
    needed = new_dependency(breaker={"reset_after": 1.0})
    world = needed.world
    needed.set("permanent")
    jobs = needed.publish(1500, seconds=0.002)
    worker = needed.start_worker(worker__http_port=0)
    world.wait("it is told", lambda: worker.said("breaker_open"))
    (told,) = worker.said("breaker_open")
    assert (told["level"], told["reason"]) == ("CRITICAL", "dlq_flood")
    world.wait("probes died too", lambda: len(worker.said("breaker_half_open")) >= 2)
    assert scrape(worker)["pipeline_breaker_opened_total"] == 1
    assert scrape(worker)["pipeline_breaker_state"] >= 1
    needed.set("")
    letters = len(world.letters())
    assert 100 <= letters <= 400, letters
    world.wait_ended(jobs, timeout=90)
    world.wait_committed()
    assert len(world.letters()) <= letters + 5
    assert_nothing_lost(world)
    assert_clean_end(world)


def test_an_operator_holds_a_job_type_and_lets_it_go(new_dependency: NewDependency) -> None:
    needed = new_dependency()
    world = needed.world
    worker = needed.start_worker()
    world.wait("it works", lambda: worker.said("started"))
    opened = world.cli("breakers", "open", "work.effect", "--by", "ann")
    assert opened.code == 0, opened.err
    world.wait("the worker knows", lambda: worker.said("breaker_open"))
    jobs = needed.publish(50)
    light = needed.publish(20, light=True)
    world.wait_ended(light)
    assert not needed.runs()
    listed = world.cli("breakers", "list")
    assert "work.effect" in listed.out
    assert "operator" in listed.out
    assert "never, close it" in listed.out
    assert "ann" in listed.out
    (told,) = json.loads(world.cli("breakers", "list", "--json").out)
    assert (told["type"], told["state"], told["next_try"]) == ("work.effect", "open", None)
    closed = world.cli("breakers", "close", "work.effect", "--by", "bob")
    assert closed.code == 0, closed.err
    assert needed.changes() == [("closed", "open", "ann"), ("open", "closed", "bob")]
    shown = world.cli("console", "consume", world.names.events, "--type", "work.effect", "--limit", "1")
    assert json.loads(shown.out)["event"]["by"] == "ann"
    world.wait_ended(jobs)
    world.wait_committed()
    starts = sorted(run.started for run in needed.runs())
    assert starts[30] - starts[0] >= 2.0  # 2, 4, 8, 16 ...: not all at once
    assert_clean_end(world)


def test_held_jobs_that_are_too_many_make_room_for_others_without_burning_attempts(
    new_dependency: NewDependency,
) -> None:
    """The shelf holds 20: the rest goes round by a retry topic, and jobs behind it in the same partitions run."""
    needed = new_dependency(settings={"worker.delay_buffer_jobs": 40, "worker.buffer_jobs": 40})
    world = needed.world
    needed.start_worker()
    assert world.cli("breakers", "open", "work.effect").code == 0
    world.wait("the worker knows", lambda: world.workers[0].said("breaker_open"))
    jobs = needed.publish(150)
    light = needed.publish(50, light=True)
    world.wait_ended(light)
    assert not needed.runs()
    assert world.cli("breakers", "close", "work.effect").code == 0
    world.wait_ended(jobs, timeout=90)
    world.wait_committed()
    outcomes = {run.outcome for job in jobs for run in world.story(job.job_id).attempts}
    assert outcomes == {AttemptOutcome.SNOOZED}
    assert {run.attempt for run in needed.runs()} == {1}
    assert len(needed.runs()) == len(jobs)
    assert_nothing_lost(world)
    assert_clean_end(world)
