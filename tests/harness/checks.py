"""The promises, as questions to the evidence.

What `find_` gives is what does not fit: nothing, if the promise holds. What `assert_` asks raises AssertionError with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from math import inf

from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.state import JobState
from tests.harness.jobs import EFFECT, ORDERED
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
    "find_disorder",
    "find_doubled",
    "find_fallen",
    "find_false",
    "find_lost",
    "find_passed",
    "find_untold",
]


def assert_nothing_lost(world: World, extra: Iterable[str] = ()) -> None:
    """Every job that was acknowledged is done, or rests in the DLQ: from a full read of Postgres and of the topic."""
    lost = find_lost(world, extra)
    assert not lost, f"{len(lost)} jobs are lost: {lost}"


def find_lost(world: World, extra: Iterable[str] = ()) -> dict[str, JobState | None]:
    states = world.states()
    dead = {parse_job(letter, queue="default").job.job_id for letter in world.letters()}
    expected = {acked.job_id for acked in world.acked()} | set(extra)
    return {
        job_id: states.get(job_id) for job_id in expected if not _at_rest(job_id, states.get(job_id), dead)
    }


def _at_rest(job_id: str, state: JobState | None, letters: Collection[str]) -> bool:
    return state is JobState.COMPLETED or (state is JobState.DEAD and job_id in letters)


def assert_one_effect_each(world: World, jobs: Iterable[Acked] | None = None) -> None:
    """Each job has exactly one effect, written by the run that holds the highest token. Without jobs: all that completed."""
    wrong, stale = find_doubled(world, jobs)
    assert not wrong, f"jobs with another number of effects than one: {wrong}"
    assert not stale, f"effects of runs that did not complete the job, by their tokens: {stale}"


def find_doubled(
    world: World, jobs: Iterable[Acked] | None = None
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Jobs with another number of effects than one; tokens of effects that are not those of the job's completion."""
    found = world.execute(
        f"select job_id::text, token from \"{world.name}\".jobs where job_type in ('{EFFECT}', '{ORDERED}')"
    )
    tokens = dict(found)
    wanted = {job.job_id for job in jobs} if jobs is not None else _completed(world) & tokens.keys()
    effects = world.effects()
    counts = Counter(effect.job_id for effect in effects)
    stale: dict[str, list[int]] = defaultdict(list)
    for effect in effects:
        if effect.token != tokens.get(effect.job_id):
            stale[effect.job_id].append(effect.token)
    return {job_id: counts[job_id] for job_id in wanted | counts.keys() if counts[job_id] != 1}, stale


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


def assert_offsets_held(world: World, samples: Sequence[Sample]) -> None:
    """No committed offset ever fell, or passed a record of a main topic whose job no run had ended yet."""
    assert samples, "no sample was taken"
    fallen = find_fallen(samples)
    assert not fallen, f"committed offsets fell: {fallen}"
    passed = find_passed(world, samples)
    assert not passed, f"records were committed before their jobs had ended: {passed}"


def find_fallen(samples: Sequence[Sample]) -> list[str]:
    """Places where the committed offset fell from one sample to a later one."""
    highest: dict[Partition, int] = {}
    fallen = []
    for sample in samples:
        for partition, committed in sample.committed.items():
            if committed < highest.get(partition, 0):
                fallen.append(f"{partition} from {highest[partition]} to {committed} at {sample.asked_at}")
            highest[partition] = committed
    return fallen


def find_passed(world: World, samples: Sequence[Sample], *, apart: Collection[str] = ()) -> list[str]:
    """Samples in which the committed offset had passed a job, not one of those `apart`, that no run had ended yet."""
    ends = _first_ends(world)
    places: dict[Partition, list[Acked]] = defaultdict(list)
    for job in sorted(world.acked(), key=lambda job: job.offset):
        if job.job_id not in apart:
            places[Partition(job.topic, job.partition)].append(job)
    passed = []
    for partition, jobs in places.items():
        offsets = [job.offset for job in jobs]
        latest = list(accumulate((ends.get(job.job_id, inf) for job in jobs), max))
        for sample in samples:
            below = bisect_left(offsets, sample.committed.get(partition, 0))
            if below and latest[below - 1] > sample.answered_at:
                passed.append(f"{partition} at {sample.committed[partition]} at {sample.answered_at}")
    return passed


def _first_ends(world: World) -> dict[str, float]:
    """As the runs told of it, or as the store has it: one that was killed or frozen told never, or late."""
    stored: dict[tuple[str, int], float] = {
        (job_id, token): at
        for job_id, token, at in world.execute(
            "select job_id::text, token, extract(epoch from finished_at)::double precision"
            f" from \"{world.name}\".jobs where state = 'completed' union all"
            " select job_id::text, token, extract(epoch from finished_at)::double precision"
            f" from \"{world.name}\".attempts where outcome <> 'lost'"
        )
    }
    ends: dict[str, float] = {}
    for run in world.executions():
        ended = min(run.ended or inf, stored.get((run.job_id, run.token), inf), ends.get(run.job_id, inf))
        if ended < inf:
            ends[run.job_id] = ended
    return ends


def find_disorder(world: World, log: Iterable[Record]) -> list[str]:
    """Jobs that promise order and had their effect before one of their tenant that came first in the `log`, a main topic."""
    place: dict[str, tuple[int, int]] = {}
    for record in log:
        names = dict(record.headers)
        if names.get("ce_type") == ORDERED.encode():
            place.setdefault((names["ce_id"] or b"").decode(), (record.partition, record.offset))
    last: dict[str, tuple[int, int]] = {}
    tenants = {job.job_id: job.tenant for job in world.acked()}
    disorder = []
    for effect in world.effects():
        if effect.job_id in place and (tenant := tenants.get(effect.job_id)):
            if place[effect.job_id] < last.get(tenant, (0, -1)):
                disorder.append(f"{effect.job_id} of {tenant} after the one at {last[tenant]}")
            last[tenant] = place[effect.job_id]
    return disorder


def find_false(world: World, log: Iterable[Record]) -> list[Acked]:
    """Acknowledged jobs that do not lie in the `log` where the publisher was told that they lie."""
    found = {(each.topic, each.partition, each.offset): dict(each.headers).get("ce_id") for each in log}
    topics = {topic for topic, _, _ in found}
    return [
        job
        for job in world.acked()
        if job.topic in topics and found.get((job.topic, job.partition, job.offset)) != job.job_id.encode()
    ]


def find_untold(world: World) -> dict[str, JobState]:
    """Jobs whose audit trail does not have the end of their last run. It may have more than once what it has."""
    told = {
        (event["job_id"], event["token"], move["state"])
        for event in world.events()
        for move in event.get("moves", ())
    }
    ends = [JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED]
    ended = world.execute(
        f'select job_id::text, token, state from "{world.name}".jobs where state = any(%s)', ends
    )
    return {job_id: JobState(state) for job_id, token, state in ended if (job_id, token, state) not in told}


def assert_clean_end(world: World) -> None:
    """Stop what runs, and look around: nothing is left to do, nothing is held, nobody is left behind."""
    world.stop_workers()
    assert world.lag() == 0
    ends = (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    open_jobs = {job_id: state for job_id, state in world.states().items() if state not in ends}
    assert not open_jobs
    # One that leaves while handlers run keeps its lease, so that nobody runs their jobs beside them; it ends by itself.
    held = f'select worker_id from "{world.name}".workers where left_at is null and alive_until > clock_timestamp()'
    wait_until(lambda: not world.execute(held), "no lease is held")
    idle = world.execute(
        "select pid, query from pg_stat_activity where datname = current_database() "
        "and application_name like 'pipeline%%' and state like 'idle in transaction%%' and pid <> %s",
        0,
    )
    assert not idle, f"transactions that were left open: {idle}"
    assert all(worker.is_gone() for worker in world.workers)
