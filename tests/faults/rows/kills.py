"""Workers are killed at the worst moments; handlers kill their workers."""

from __future__ import annotations

import time
from collections import Counter
from signal import SIGKILL

from pipeline.core import headers
from pipeline.core.headers import parse_job
from pipeline.core.offsets import Partition
from pipeline.core.state import JobState
from tests.faults.case import Case, Loaded, scenario
from tests.harness.checks import assert_runs
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.proxy import Loss
from tests.harness.requests import OFFSET_COMMIT, PRODUCE, kafka_request
from tests.harness.world import World

__all__: list[str] = []


@scenario(1)
def a_worker_is_killed_while_its_handlers_run(case: Case) -> None:
    """Another runs its jobs in the same attempt, under the next token, although jobs behind them are done and it has committed since."""
    world = case.world()
    with case.loaded(world) as loaded:
        pid, here, beside = _owner_of_two(loaded)
        victim = loaded.worker(pid)
        held = loaded.hold(6, tenant=_tenant_in(world, here))
        assert loaded.holders(held) == {pid}
        world.wait_ended(
            world.publish(world.jobs.plain, [Task(name="behind")] * 6, tenant=_tenant_in(world, here))
        )
        _wait_for_commit(world, beside)
        with loaded.load.fault():
            victim.kill()
            world.open("go")
        world.start_worker()
    for job in held:
        runs = world.executions(job_id=job.job_id)
        assert [(run.attempt, run.token) for run in runs] == [(1, 1), (1, 2)], runs
    case.judge(loaded, killed=[victim.pid])


def _owner_of_two(loaded: Loaded) -> tuple[int, int, int]:
    """A process, and two partitions of the main topic that it has: of three partitions, one of two workers has two."""

    found: list[tuple[int, int, int]] = []

    def is_found() -> bool:
        owners = loaded.owners()
        for pid in set(owners.values()):
            own = [partition for partition, owner in owners.items() if owner == pid]
            if len(own) > 1:
                found.append((pid, own[0], own[1]))
        return bool(found)

    loaded.world.wait("a worker has two partitions", is_found)
    return found[0]


def _tenant_in(world: World, partition: int) -> str:
    return next(job.tenant for job in world.acked() if job.partition == partition and job.tenant)


def _wait_for_commit(world: World, number: int) -> None:
    """Wait until the owner of a partition of the main topic has committed what it had done by now, there and elsewhere."""
    (last,) = world.publish(world.jobs.plain, [Task(name="last")], tenant=_tenant_in(world, number))
    place = Partition(last.topic, last.partition)

    def committed() -> bool:
        position = world.admin.group_lag(world.group, [last.topic])[place]
        return (position.committed or 0) > last.offset

    world.wait("it has committed since", committed)


PLACES = {"before": [1, 1], "inside": [1, 1], "after": [1]}
TENANTS = ("tenant-2", "tenant-0", "tenant-5")  # one for each partition, in their order


@scenario(2)
def workers_are_killed_around_an_effect(case: Case) -> None:
    """Before it, in its transaction, and just after that has committed: it is there once, under one job id."""
    world = case.world()
    with case.loaded(world, workers=len(PLACES)) as loaded:
        world.wait("each worker has a partition", lambda: len(set(loaded.owners().values())) == len(PLACES))
        victims = list(world.workers)
        for worker in victims:
            worker.may_end = True
        with loaded.load.fault():
            jobs = [
                job
                for place, tenant in zip(PLACES, TENANTS, strict=True)
                for job in world.publish(world.jobs.effect, [Task(name=place, dies=place)], tenant=tenant)
            ]
            world.wait("all workers die", lambda: not any(worker.running for worker in victims))
        for _ in range(2):
            world.start_worker()
    assert {worker.wait() for worker in victims} == {-SIGKILL}
    for job, attempts in zip(jobs, PLACES.values(), strict=True):
        assert [run.attempt for run in world.executions(job_id=job.job_id)] == attempts
    case.judge(loaded, killed=[worker.pid for worker in victims])


@scenario(3)
def a_worker_is_killed_between_completion_and_commit(case: Case) -> None:
    """At its commit: what it has completed is recognised when it comes again, and not run."""
    world = case.world()
    victim = world.start_worker(
        kafka__bootstrap_servers=case.site.kafka_by_proxy, worker__commit_interval=2, worker__buffer_jobs=1000
    )
    done: set[str] = set()
    killed_at: list[float] = []

    def kill() -> None:
        done.update(job_id for job_id, state in world.states().items() if state is JobState.COMPLETED)
        victim.kill()
        killed_at.append(time.time())

    with case.loaded(world, workers=1) as loaded:
        victim.may_end = True
        with loaded.load.fault():
            trap = case.site.kafka_proxy.trap(kafka_request(OFFSET_COMMIT), kill, loss=Loss.REQUEST)
            world.wait("it is killed at its commit", lambda: trap.sprung and not victim.running)
        world.start_worker()
    by_victim = {run.job_id for run in world.executions(pid=victim.pid)} & done
    assert by_victim
    again = [run for run in world.executions() if run.job_id in by_victim and run.started > killed_at[0]]
    assert not again, again
    case.judge(loaded, killed=[victim.pid])


@scenario(3, "before its events")
def events_are_held_back_until_their_worker_is_killed(case: Case) -> None:
    """Its jobs are completed, and no event of them is written: nothing of theirs is committed, and the next worker tells."""
    # The next worker has the same name, and so need not wait until the session of this one is over.
    world = case.world(settings={"worker.static_member_id": "one"})
    victim = world.start_worker(
        kafka__bootstrap_servers=case.site.kafka_by_proxy, worker__commit_interval=0.01
    )
    with world.sampler() as sampler:
        wanted = kafka_request(PRODUCE, containing=world.names.events.encode())
        trap = case.site.kafka_proxy.trap(wanted, loss=Loss.REQUEST, times=10**9)
        jobs = world.publish(world.jobs.effect, [Task(name=f"untold-{n}") for n in range(9)])
        world.wait_ended(jobs)
        # Each is fetched after the one before was done, and after each fetch comes a commit of what may be committed.
        for number in range(5):
            world.wait_ended(world.publish(world.jobs.plain, [Task(name=f"after-{number}")]))
        world.wait("its events are held back", trap.is_sprung)
        victim.kill()
        world.start_worker()
        world.wait_committed()
    assert_runs(world, world.acked())
    case.judge_world(world, sampler, killed=[victim.pid])


@scenario(4)
def handlers_kill_their_process(case: Case) -> None:
    """Three jobs at once, in three ways: they take one worker and two children each with them, and are poison then."""
    world = case.world(settings={"worker.process_memory_mb": 300})
    with case.loaded(world) as loaded:
        for worker in world.workers:
            worker.may_end = True
        with loaded.load.fault():
            deadly = [
                job
                for kind, how in (
                    (world.jobs.asynchronous, "exit"),
                    (world.jobs.effect, "crash"),
                    (world.jobs.plain, "eat"),
                )
                for job in world.publish(kind, [Task(name=how, dies=how, gate="die")], tenant="tenant-1")
            ]
            ids = loaded.ids(deadly)
            world.wait("they run", lambda: ids <= {run.job_id for run in world.executions()})
            world.open("die")
            world.wait("a worker dies", lambda: any(not worker.running for worker in world.workers))
        world.start_worker()
        world.wait_ended(deadly, timeout=120)
    dead = [worker for worker in world.workers if not worker.running]
    assert len(dead) == 1, "more than one worker died of jobs that one worker had"
    for job in deadly:
        _assert_poison(world, job)
    case.judge(loaded, killed=[worker.pid for worker in dead], apart=loaded.ids(deadly))


def _assert_poison(world: World, job: Acked) -> None:
    runs = [run.attempt for run in world.executions(job_id=job.job_id)]
    assert runs[-2:] == [1, 2], runs  # two children
    assert len(runs) <= 3, runs
    letters = [each for each in world.letters() if parse_job(each, queue="default").job.job_id == job.job_id]
    assert [dict(letter.headers)[headers.REASON] for letter in letters] == [b"poison"]
    story = world.story(job.job_id)
    assert (story.state, story.reason, story.crashes) == (JobState.DEAD, "poison", 2)


def _killed_at_retry(case: Case, loss: Loss) -> None:
    world = case.world()
    victim = world.start_worker(kafka__bootstrap_servers=case.site.kafka_by_proxy)
    with case.loaded(world, workers=1) as loaded:
        victim.may_end = True
        with loaded.load.fault():
            wanted = kafka_request(PRODUCE, containing=b".retry.")
            trap = case.site.kafka_proxy.trap(wanted, victim.kill, loss=loss)
            failing = world.publish(world.jobs.effect, [Task(name=f"fails-{n}", fails=1) for n in range(6)])
            world.wait("it is killed at its retry", lambda: trap.sprung and not victim.running)
        world.start_worker()
    for job in failing:
        attempts = [run.attempt for run in world.executions(job_id=job.job_id)]
        assert sorted(set(attempts)) == [1, 2]
        assert attempts.count(2) == 1, attempts
    case.judge(loaded, killed=[victim.pid], apart=loaded.ids(failing))


@scenario(10, "kill -9, not written", quick=False)
def a_worker_is_killed_before_its_retry_is_written(case: Case) -> None:
    _killed_at_retry(case, Loss.REQUEST)


@scenario(10, "kill -9, written")
def a_worker_is_killed_after_its_retry_was_written(case: Case) -> None:
    _killed_at_retry(case, Loss.NOTHING)


def _killed_at_letter(case: Case, loss: Loss) -> None:
    """Its job dies again, in another worker; however many letters that makes, one replay brings it back once."""
    world = case.world(policy=Policy(max_attempts=1))
    victim = world.start_worker(kafka__bootstrap_servers=case.site.kafka_by_proxy)
    with case.loaded(world, workers=1, failing=False) as loaded:
        victim.may_end = True
        with loaded.load.fault():
            trap = case.site.kafka_proxy.trap(
                kafka_request(PRODUCE, containing=b".dlq"), victim.kill, loss=loss
            )
            doomed = world.publish(world.jobs.effect, [Task(name=f"doomed-{n}", fails=-1) for n in range(6)])
            world.wait("it is killed at its letter", lambda: trap.sprung and not victim.running)
        world.start_worker()
        world.wait_ended(doomed)
        letters = Counter(parse_job(each, queue="default").job.job_id for each in world.letters())
        assert letters.keys() == loaded.ids(doomed)
        assert (letters.total() > len(doomed)) == (loss is Loss.NOTHING), letters
        world.open("fixed")
        replay = world.cli("dlq", "replay", "--all", "--execute")
        assert (replay.code, replay.out.count("replayed: 6 of")) == (0, 1), replay.out + replay.err
        world.wait("all completed", lambda: _all_completed(world, doomed))
    for job in doomed:
        runs = [run for run in world.executions(job_id=job.job_id) if not run.error and run.ended]
        assert len(runs) == 1, runs
    case.judge(loaded, killed=[victim.pid], apart=loaded.ids(doomed))


def _all_completed(world: World, jobs: list[Acked]) -> bool:
    states = world.states()
    return all(states[job.job_id] is JobState.COMPLETED for job in jobs)


@scenario(10, "kill -9, letter not written", quick=False)
def a_worker_is_killed_before_its_letter_is_written(case: Case) -> None:
    _killed_at_letter(case, Loss.REQUEST)


@scenario(10, "kill -9, letter written", quick=False)
def a_worker_is_killed_after_its_letter_was_written(case: Case) -> None:
    """Between the letter and the state, and so before the commit."""
    _killed_at_letter(case, Loss.NOTHING)


@scenario(10, "SIGTERM", quick=False)
def a_worker_is_stopped_while_it_writes_retries(case: Case) -> None:
    """It drains; the answers to its first writes are lost."""
    world = case.world()
    leaving = world.start_worker(kafka__bootstrap_servers=case.site.kafka_by_proxy)
    with case.loaded(world, workers=1) as loaded:
        leaving.may_end = True
        with loaded.load.fault():
            wanted = kafka_request(PRODUCE, containing=b".retry.")
            trap = case.site.kafka_proxy.trap(wanted, leaving.terminate, loss=Loss.ANSWER)
            failing = world.publish(world.jobs.effect, [Task(name=f"fails-{n}", fails=1) for n in range(6)])
            world.wait("it is told to stop", lambda: trap.sprung)
            assert leaving.wait(60) == 0
        world.start_worker()
    for job in failing:
        attempts = [run.attempt for run in world.executions(job_id=job.job_id)]
        assert attempts == [1, 2], attempts
    case.judge(loaded, apart=loaded.ids(failing))
