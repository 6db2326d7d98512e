"""Handlers hang, block, fail beyond words, and need what is not there."""

from __future__ import annotations

import time

from pipeline.core.breaker import BreakerState
from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.state import JobState
from tests.faults.case import Case, Loaded, scenario
from tests.faults.figures import percentile
from tests.harness.group import rebalances, wait_shared
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.world import World

__all__: list[str] = []

TIME_LIMIT = 5.0


@scenario(5)
def handlers_hang(case: Case) -> None:
    """Their attempts end at the time limit, other jobs go on, and their slots come back when they return."""
    world = case.world(policy=Policy(timeout=TIME_LIMIT), settings={"worker.concurrency": 16})
    with case.loaded(world) as loaded:
        with loaded.load.fault():
            world.open("hang-2")  # only their first runs hang
            hanging = world.publish(
                world.jobs.effect, [Task(name=f"hangs-{number}", gate="hang") for number in range(6)]
            )
            world.wait_ended(hanging)
        began, ended = loaded.load.faults[0]
        assert loaded.load.done_during((began, ended)) > 0.5 * loaded.load.steady_rate() * (ended - began)
        world.open("hang")
        returned = [len(worker.said("overdue_returned")) for worker in world.workers]
        world.wait(
            "all slots are back",
            lambda: sum(len(worker.said("overdue_returned")) for worker in world.workers) == len(hanging),
        )
        assert returned
    gaps = []
    for job in hanging:
        first, second = world.executions(job_id=job.job_id)
        assert (first.attempt, second.attempt) == (1, 2)
        gaps.append(second.started - first.started)
    assert min(gaps) >= TIME_LIMIT + world.policy.base
    case.figures.notes["seconds to the next attempt"] = round(max(gaps), 1)
    case.judge(loaded, apart=loaded.ids(hanging))


@scenario(6)
def handlers_are_slower_than_the_poll_interval(case: Case) -> None:
    """Polling goes on while they run: nobody is put out of the group, and they run once."""
    world = case.world(settings={"worker.max_poll_interval": 10, "worker.concurrency": 16})
    with case.loaded(world) as loaded:
        wait_shared(world, *world.workers)
        before = rebalances(world.workers)
        with loaded.load.fault():
            held = loaded.hold(8)
            loaded.load.pass_time(15)
            world.open("go")
            world.wait_ended(held)
        assert rebalances(world.workers) == before
    for job in held:
        assert len(world.executions(job_id=job.job_id)) == 1
    case.judge(loaded)


@scenario(7)
def the_poll_loop_is_blocked(case: Case) -> None:
    """By a handler that holds the interpreter, while the client's own threads keep the session."""
    world = case.world(settings={"worker.max_poll_interval": 8})
    blocked = world.start_worker()
    with case.loaded(world, workers=1) as loaded:
        with loaded.load.fault():
            tasks = [Task(name=f"blocks-{number}", blocks=16) for number in range(8)]
            blocking = world.publish(world.jobs.effect, tasks)
            loaded.load.pass_time(20)
            world.wait_ended(blocking, timeout=120)
        world.wait("it is back", lambda: blocked.said("assigned") and blocked.running)
    case.judge(loaded)


ODD = "(no text: __str__ raised SystemExit)"
HUGE = "characters left out"


@scenario(27)
def errors_cannot_be_written_down(case: Case) -> None:
    """Their jobs are retried, then dead, with a safe and short text; no worker minds."""
    world = case.world()
    with case.loaded(world) as loaded:
        pids = {worker.pid for worker in world.workers}
        with loaded.load.fault():
            kinds = {"odd": ODD, "huge": HUGE}
            jobs = {
                kind: world.publish(
                    world.jobs.effect, [Task(name=f"{kind}-{n}", fails=-1, error=kind) for n in range(3)]
                )
                for kind in kinds
            }
            world.wait_ended([job for each in jobs.values() for job in each])
    assert {worker.pid for worker in world.workers if worker.running or worker.wait() == 0} == pids
    for kind, text in kinds.items():
        for job in jobs[kind]:
            _assert_dead_in_few_words(world, job, text)
    case.judge(loaded, apart=loaded.ids([job for each in jobs.values() for job in each]))


def _assert_dead_in_few_words(world: World, job: Acked, text: str) -> None:
    story = world.story(job.job_id)
    assert (story.state, [run.attempt for run in story.attempts]) == (JobState.DEAD, [1, 2, 3])
    for run in story.attempts:
        assert run.failure is not None
        assert text in run.failure.message
        assert len(run.failure.message) + len(run.failure.stack) < 12_000
        assert "_fail_or_die" in run.failure.stack
    letter = _letter(world, job)
    assert text in dict(letter.headers)["pipeline-last-error-message"].decode()  # type: ignore[union-attr]
    assert sum(len(name) + len(value or b"") for name, value in letter.headers) < 20_000


def _letter(world: World, job: Acked) -> Record:
    (letter,) = [
        each for each in world.letters() if parse_job(each, queue="default").job.job_id == job.job_id
    ]
    return letter


@scenario(28)
def letters_cannot_be_written(case: Case) -> None:
    """The jobs that die wait for their letters, uncommitted; all others go on, though hundreds wait."""
    world = case.world(policy=Policy(max_attempts=1), settings={"worker.batch_max": 50})
    dlq = world.names.dlq("default")
    # The letters of jobs that had died before would be deleted with the topic.
    with case.loaded(world, failing=False) as loaded, loaded.load.fault():
        world.admin.delete([dlq])
        tasks = [Task(name=f"doomed-{number}", fails=-1) for number in range(300)]
        doomed = world.publish(world.jobs.effect, tasks)
        world.wait("letters are refused", lambda: _said(world, "next_record_failed"), timeout=60)
        for number in range(2):
            others = world.publish(world.jobs.plain, [Task(name=f"other-{number}-{n}") for n in range(150)])
            world.wait_ended(others)
            assert not {world.states().get(job.job_id) for job in doomed} & {JobState.DEAD}
        world.wait("no more of their type are started", lambda: _said(world, "clogged"))
        (created,) = [spec for spec in world.jobs.app.topics() if spec.name == dlq]
        world.admin.create([created])
        world.wait_ended(doomed, timeout=90)
    loaded.load.told.update((job.job_id, task) for job, task in zip(doomed, tasks, strict=True))
    case.judge(loaded)


def _said(world: World, action: str) -> bool:
    return any(worker.said(action) for worker in world.workers)


@scenario(40, "dependency")
def a_dependency_is_down(case: Case) -> None:
    """The breaker opens and closes again; who does not need it keeps the pace; memory is bounded."""
    world = case.world(target="tests.acceptance.dependency_app:app")
    mode = world.folder / "mode"
    with case.loaded(world, mix=((0.5, "effect"), (1.0, "plain"))) as loaded:
        before = loaded.watch.most_memory()
        with loaded.load.fault():
            mode.write_text("broken")
            world.wait("the breaker opens", lambda: _breaker(world) is BreakerState.OPEN)
            opened = time.time()
            loaded.load.pass_time(case.scale.outage)
            closed = time.time()
            mode.unlink()
        world.wait("it closes", lambda: _breaker(world) is BreakerState.CLOSED, timeout=60)
    light = [
        run for run in world.executions() if run.job_type == "work.plain" and opened < run.ended < closed
    ]
    expected = 0.5 * loaded.load.steady_rate() * (closed - opened)
    assert len(light) > 0.8 * expected, f"{len(light)} light jobs, {expected:.0f} were published"
    probes = [run for run in world.executions() if run.error and opened + 1 < run.started < closed]
    assert len(probes) <= closed - opened + 5, f"{len(probes)} jobs were tried while the breaker was open"
    case.figures.notes["failed probes"] = len(probes)
    case.figures.notes["MB more"] = round(max(0.0, loaded.watch.most_memory() - before))
    case.judge(loaded, apart={job.job_id for job in world.acked()})


def _breaker(world: World) -> BreakerState:
    found = world.execute(f"select state from \"{world.name}\".breakers where job_type = 'work.effect'")
    return BreakerState(found[0][0]) if found else BreakerState.CLOSED


@scenario(40, "heavy tenant")
def one_tenant_sends_far_too_much(case: Case) -> None:
    """The others wait as if it were not there, or nearly so."""
    world = case.world()
    with case.loaded(world) as loaded:
        with loaded.load.fault():
            count = max(4000, case.scale.jobs // 2)
            tasks = [Task(name=f"flood-{number}", seconds=0.02) for number in range(count)]
            flood = world.publish(world.jobs.effect, tasks, tenant="tenant-0")
            world.wait_ended(flood, timeout=300)
        began, ended = loaded.load.faults[0]
    waits = _waits(loaded, (began, ended))
    flooded = max(run.started for run in world.executions() if run.job_id in loaded.ids(flood)) - began
    slow = percentile(waits, 95)
    case.figures.notes["seconds that light jobs waited, p95"] = round(slow, 2)
    case.figures.notes["seconds that the flood took"] = round(flooded, 1)
    assert slow < flooded / 2, f"{slow:.2f} s of {flooded:.2f} s"
    case.judge(loaded)


def _waits(loaded: Loaded, span: tuple[float, float]) -> list[float]:
    """How long jobs of light tenants, published within the span, waited for their first run."""
    starts: dict[str, float] = {}
    for run in loaded.world.executions():
        starts.setdefault(run.job_id, run.started)
    return [
        starts[job.job_id] - at
        for job in loaded.world.acked()
        if job.tenant not in ("", "tenant-0")
        and span[0] < (at := loaded.load.published_at[job.job_id]) < span[1] - 1
    ]
