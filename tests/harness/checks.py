"""The promises, as questions to the evidence. Each raises AssertionError with what does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from pipeline.core.headers import parse_job
from pipeline.core.offsets import Partition
from pipeline.core.state import JobState
from tests.harness.jobs import EFFECT
from tests.harness.ledger import Acked
from tests.harness.sampler import Sample
from tests.harness.waiting import wait_until
from tests.harness.world import World

__all__ = [
    "assert_clean_end",
    "assert_nothing_lost",
    "assert_offsets_held",
    "assert_one_effect_each",
    "assert_runs",
]


def assert_nothing_lost(world: World, extra: Iterable[str] = ()) -> None:
    """Every job that was acknowledged is done, or rests in the DLQ: from a full read of Postgres and of the topic."""
    states = world.states()
    dead = {parse_job(letter, queue="default").job.job_id for letter in world.letters()}
    expected = {acked.job_id for acked in world.acked()} | set(extra)
    lost = {
        job_id: states.get(job_id) for job_id in expected if not _at_rest(job_id, states.get(job_id), dead)
    }
    assert not lost, f"{len(lost)} of {len(expected)} jobs are lost: {lost}"


def _at_rest(job_id: str, state: JobState | None, letters: Collection[str]) -> bool:
    return state is JobState.COMPLETED or (state is JobState.DEAD and job_id in letters)


def assert_one_effect_each(world: World, jobs: Iterable[Acked] | None = None) -> None:
    """Each job has exactly one effect, written by the run that holds the highest token. Without jobs: all that completed."""
    found = world.execute(
        f"select job_id::text, token from \"{world.name}\".jobs where job_type = '{EFFECT}'"
    )
    tokens = dict(found)
    wanted = {job.job_id for job in jobs} if jobs is not None else _completed(world) & tokens.keys()
    effects = world.effects()
    counts = Counter(effect.job_id for effect in effects)
    wrong = {job_id: counts[job_id] for job_id in wanted | counts.keys() if counts[job_id] != 1}
    assert not wrong, f"jobs with another number of effects than one: {wrong}"
    stale = [effect for effect in effects if effect.token != tokens[effect.job_id]]
    assert not stale, f"effects of runs that did not complete the job: {stale}"


def _completed(world: World) -> set[str]:
    return {job_id for job_id, state in world.states().items() if state is JobState.COMPLETED}


def assert_runs(world: World, jobs: Iterable[Acked], *, attempts: Sequence[int] = (1,)) -> None:
    """Each of these jobs was run exactly so: the numbers of its attempts, in the order of its runs."""
    runs: dict[str, list[int]] = {job.job_id: [] for job in jobs}
    for run in world.executions():
        if run.job_id in runs:
            runs[run.job_id].append(run.attempt)
    wrong = {job_id: seen for job_id, seen in runs.items() if seen != list(attempts)}
    assert not wrong, f"{len(wrong)} of {len(runs)} jobs ran otherwise than {list(attempts)}: {wrong}"


def assert_offsets_held(world: World, samples: Sequence[Sample], *, killed: Collection[int] = ()) -> None:
    """No committed offset ever fell, or passed a record of a main topic whose job no run had ended yet.

    A run of a process that was `killed` may have ended without a word: just after it had completed its job.
    """
    assert samples, "no sample was taken"
    highest: dict[Partition, int] = {}
    first_end: dict[str, float] = {}
    for run in world.executions():
        ended = run.ended or (run.started if run.pid in killed else 0.0)
        if ended:
            first_end[run.job_id] = min(ended, first_end.get(run.job_id, ended))
    for sample in samples:
        for partition, committed in sample.committed.items():
            assert committed >= highest.get(partition, 0), (
                f"the committed offset of {partition} fell: {samples}"
            )
            highest[partition] = committed
        for job in world.acked():
            passed = sample.committed.get(Partition(job.topic, job.partition), 0) > job.offset
            ended = first_end.get(job.job_id, float("inf")) <= sample.answered_at
            assert ended or not passed, f"{job} was committed before it had ended: {sample}"


def assert_clean_end(world: World) -> None:
    """Stop what runs, and look around: nothing is left to do, nothing is held, nobody is left behind."""
    world.stop_workers()
    assert world.lag() == 0
    ends = (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    open_jobs = {job_id: state for job_id, state in world.states().items() if state not in ends}
    assert not open_jobs
    # One that leaves while handlers run keeps its lease, so that nobody runs their jobs beside them; it ends by itself.
    held = f'select worker_id from "{world.name}".workers where left_at is null and alive_until > clock_timestamp()'
    wait_until(lambda: not world.execute(held), "no lease is held", timeout=20)
    idle = world.execute(
        "select pid, query from pg_stat_activity where datname = current_database() "
        "and application_name like 'pipeline%%' and state like 'idle in transaction%%' and pid <> %s",
        0,
    )
    assert not idle, f"transactions that were left open: {idle}"
    assert all(worker.is_gone() for worker in world.workers)
