"""Every interleaving of workers that run two jobs of one key in order, retrying them in place.

One partition, all records of one key. Workers take its first unfinished record, claim it by the product's own rule, run
it, fail, settle, commit, crash, freeze, lose answers and partitions, within small budgets. Checked over every reachable
state:

  order     a job is granted while one that was published before it is neither completed nor dead
  early     a retry is granted before it is due
  attempts  a run's number is not one more than the job's failures
  beside    a job is granted while its holder is alive and runs it
  twice     a job that ended changes its state
  loss      an offset is committed beyond a record whose job has not ended
  stuck     no continuation ends all jobs and commits all records
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.claims import ClaimRequest, Row, Verdict, attempt_of, judge
from pipeline.core.job import Source
from pipeline.core.state import JobState

__all__ = ["BROKEN", "SCENARIOS", "check"]

WORKERS = (0, 1)
MAX_ATTEMPTS = 2
ENDED = (JobState.COMPLETED, JobState.DEAD)
NOT_DUE = 1.0

# What each protection is worth: without it this scenario shows that fault.
BROKEN = {
    "any-record": ("crashes", "order"),  # a worker takes any record of the key, not only the first
    "no-wait": ("alone", "early"),  # the rule does not look at the due time
    "record-attempt": ("alone", "attempts"),  # the attempt is the one in the record's header
    "done-on-retry": ("alone", "loss"),  # a failed job's offset is done, as if it had gone to a retry topic
    "next-hop": ("alone", "loss"),  # the row's hop rises, as if the job had been published onward
    "drop-same-record": ("alone", "loss"),  # a record whose job runs elsewhere is dropped instead of held
    "no-token": ("frozen", "twice"),  # settling does not compare tokens
    "forget-doubtful": ("lost answers", "stuck"),  # a record goes with its partition though no answer came
}


class JobRow(NamedTuple):
    state: JobState
    token: int
    worker: int
    source: int
    attempt: int
    hop: int = 0
    due_at: float = 0.0


class Task(NamedTuple):
    """What a worker does with a record. `step` is run, succeeded or failed; `view` is the assignment it came in."""

    offset: int
    token: int
    attempt: int
    view: int
    step: str = "run"


class View(NamedTuple):
    """An assignment of the partition as a worker sees it; it may be over without the worker's knowing."""

    number: int
    start: int
    done: frozenset[int] = frozenset()


class Worker(NamedTuple):
    alive: bool = True
    fresh: bool = True  # its lease goes on
    view: View | None = None
    tasks: tuple[Task, ...] = ()
    doubtful: frozenset[int] = frozenset()  # claims were asked, no answer came


class Budget(NamedTuple):
    crashes: int = 0
    freezes: int = 0
    moves: int = 0
    lost_answers: int = 0


class World(NamedTuple):
    records: tuple[int, ...]  # the job of each offset
    rows: tuple[JobRow | None, ...]
    failures: tuple[int, ...]
    workers: tuple[Worker, ...]
    owner: int | None
    committed: int
    views: int
    budget: Budget


Step = tuple[World, str]  # what follows, and the promise that it breaks, if any

SCENARIOS: Mapping[str, tuple[tuple[int, ...], Budget]] = {
    "alone": ((0,), Budget(crashes=1, freezes=1, moves=1)),
    "lost answers": ((0, 1), Budget(moves=1, lost_answers=2)),
    "published twice": ((0, 1, 0), Budget(crashes=1, moves=1)),
    "crashes": ((0, 1), Budget(crashes=2)),
    "frozen": ((0, 1), Budget(freezes=1)),
    "moved to and fro": ((0, 1), Budget(crashes=1, moves=2)),
}


class Model:
    """The steps from a world, with one protection taken out if `broken` names it."""

    def __init__(self, broken: str = "") -> None:
        self._broken = broken

    def steps(self, world: World) -> Iterator[Step]:
        for number, worker in enumerate(world.workers):
            if worker.alive:
                yield from self._life(world, number)
                yield from self._claims(world, number)
                for task in worker.tasks:
                    yield from self._advance(world, number, task)
                yield from self._commit(world, number)
            else:
                yield from _after_death(world, number)
        yield from self._assignments(world)
        for job, row in enumerate(world.rows):
            if row and row.due_at:
                yield world._replace(rows=_put(world.rows, job, row._replace(due_at=0.0))), ""

    # --- claims

    def _claims(self, world: World, number: int) -> Iterator[Step]:
        worker = world.workers[number]
        if not worker.fresh:
            return
        busy = {world.records[task.offset] for task in worker.tasks}
        for offset in self._takeable(world, worker):
            if world.records[offset] not in busy:
                yield from self._claim(world, number, offset)

    def _takeable(self, world: World, worker: Worker) -> Sequence[int]:
        left: list[int] = []
        if worker.view is not None:
            ahead = range(worker.view.start, len(world.records))
            left = [offset for offset in ahead if offset not in worker.view.done]
        first = left if self._broken == "any-record" else left[:1]
        return sorted({*first, *worker.doubtful})

    def _claim(self, world: World, number: int, offset: int) -> Iterator[Step]:
        worker, job = world.workers[number], world.records[offset]
        row, request = world.rows[job], _request(offset)
        verdict, attempt = self._judge(world, row, request, number)
        asked = worker._replace(doubtful=worker.doubtful - {offset})
        if verdict is Verdict.DUPLICATE:
            yield _with(world, number, _done(asked, offset)), ""
        elif verdict is Verdict.CLAIMED:
            granted = JobRow(JobState.RUNNING, row.token + 1 if row else 1, number, offset, attempt)
            after = world._replace(rows=_put(world.rows, job, granted))
            view = worker.view.number if worker.view else 0
            task = Task(offset, granted.token, attempt, view)
            running = asked._replace(tasks=(*worker.tasks, task))
            yield _with(after, number, running), self._fault(world, job, attempt)
            if world.budget.lost_answers:
                spent = world.budget._replace(lost_answers=world.budget.lost_answers - 1)
                in_doubt = worker._replace(doubtful=worker.doubtful | {offset})
                yield _with(after, number, in_doubt)._replace(budget=spent), self._fault(world, job, attempt)

    def _judge(
        self, world: World, row: JobRow | None, request: ClaimRequest, number: int
    ) -> tuple[Verdict, int]:
        if row is None:
            return Verdict.CLAIMED, 1
        due_at = 0.0 if self._broken == "no-wait" else row.due_at
        known = Row(row.state, row.hop, row.token, str(row.worker), _source(row.source), row.attempt, due_at)
        alive = world.workers[row.worker].fresh
        verdict = judge(known, request, worker=str(number), owner_alive=alive)
        if verdict is Verdict.HELD and self._broken == "drop-same-record":
            verdict = Verdict.DUPLICATE
        attempt = 1 if self._broken == "record-attempt" else attempt_of(known, request) or 1
        return verdict, attempt

    @staticmethod
    def _fault(world: World, job: int, attempt: int) -> str:
        """The promise that granting this job breaks."""
        row = world.rows[job]
        if any(not _has_ended(world.rows[before]) for before in range(job)):
            return "order"
        if row and row.due_at:
            return "early"
        if attempt != world.failures[job] + 1:
            return "attempts"
        if row and row.state is JobState.RUNNING:
            holder = world.workers[row.worker]
            if holder.fresh and any(task.token == row.token and task.step == "run" for task in holder.tasks):
                return "beside"
        return ""

    # --- runs and settlements

    def _advance(self, world: World, number: int, task: Task) -> Iterator[Step]:
        worker = world.workers[number]
        rest = tuple(other for other in worker.tasks if other != task)
        if task.step == "run":
            for step in ("succeeded", "failed"):
                yield _with(world, number, worker._replace(tasks=(*rest, task._replace(step=step)))), ""
            return
        job = world.records[task.offset]
        row = world.rows[job]
        assert row is not None
        landed = worker._replace(tasks=rest)
        mine = row.state is JobState.RUNNING and (row.token, row.worker) == (task.token, number)
        if not mine and self._broken != "no-token":
            yield _with(world, number, landed), ""  # refused: judged again
            return
        state = _next_state(task)
        ended = state in ENDED or self._broken == "done-on-retry"
        in_view = worker.view is not None and worker.view.number == task.view
        after = _with(world, number, _done(landed, task.offset) if ended and in_view else landed)
        twice = "twice" if row.state in ENDED else ""
        yield self._moved(after, job, task, state), twice

    def _moved(self, world: World, job: int, task: Task, state: JobState) -> World:
        row = world.rows[job]
        assert row is not None
        failures = world.failures
        if task.step == "failed":
            failures = _put(failures, job, task.attempt)
        if state is JobState.RETRYING:
            hop = row.hop + 1 if self._broken == "next-hop" else row.hop
            row = row._replace(state=state, attempt=task.attempt + 1, hop=hop, due_at=NOT_DUE)
        else:
            row = row._replace(state=state)
        return world._replace(rows=_put(world.rows, job, row), failures=failures)

    @staticmethod
    def _commit(world: World, number: int) -> Iterator[Step]:
        view = world.workers[number].view
        if view is None or world.owner != number:
            return
        following = view.start
        while following in view.done:
            following += 1
        if following > world.committed:
            passed = [world.rows[world.records[offset]] for offset in range(following)]
            lost = "" if all(_has_ended(row) for row in passed) else "loss"
            yield world._replace(committed=following), lost

    # --- faults, leases, assignments

    @staticmethod
    def _life(world: World, number: int) -> Iterator[Step]:
        worker, budget = world.workers[number], world.budget
        owner = None if world.owner == number else world.owner
        if budget.crashes:
            spent = budget._replace(crashes=budget.crashes - 1)
            dead = Worker(alive=False, fresh=worker.fresh)
            yield _with(world, number, dead)._replace(owner=owner, budget=spent), ""
        if budget.freezes and worker.fresh:
            spent = budget._replace(freezes=budget.freezes - 1)
            frozen = worker._replace(fresh=False)
            yield _with(world, number, frozen)._replace(owner=owner, budget=spent), ""
        if not worker.fresh:
            yield _with(world, number, worker._replace(fresh=True)), ""

    def _assignments(self, world: World) -> Iterator[Step]:
        for number, worker in enumerate(world.workers):
            if worker.view is not None and world.owner != number:
                yield _with(world, number, self._without_view(worker)), ""  # it learns of it
            if world.owner is None and worker.alive and worker.view is None:
                view = View(world.views + 1, world.committed)
                given = _with(world, number, worker._replace(view=view))
                yield given._replace(owner=number, views=world.views + 1), ""
        if world.owner is not None and world.budget.moves:
            spent = world.budget._replace(moves=world.budget.moves - 1)
            worker = self._without_view(world.workers[world.owner])
            for committed, fault in [*self._commit(world, world.owner), (world, "")]:
                moved = _with(committed, world.owner, worker)
                yield moved._replace(owner=None, budget=spent), fault

    def _without_view(self, worker: Worker) -> Worker:
        doubtful = frozenset[int]() if self._broken == "forget-doubtful" else worker.doubtful
        return worker._replace(view=None, doubtful=doubtful)


def _after_death(world: World, number: int) -> Iterator[Step]:
    if world.workers[number].fresh:
        yield _with(world, number, Worker(alive=False, fresh=False)), ""
    elif not any(row and row.state is JobState.RUNNING and row.worker == number for row in world.rows):
        yield _with(world, number, Worker()), ""  # a replacement, whose identity is new


def _next_state(task: Task) -> JobState:
    if task.step == "succeeded":
        return JobState.COMPLETED
    return JobState.DEAD if task.attempt >= MAX_ATTEMPTS else JobState.RETRYING


def _has_ended(row: JobRow | None) -> bool:
    return row is not None and row.state in ENDED


def _done(worker: Worker, offset: int) -> Worker:
    view = worker.view
    return worker if view is None else worker._replace(view=view._replace(done=view.done | {offset}))


def _request(offset: int) -> ClaimRequest:
    return ClaimRequest("job", "ledger.post", "acme", "default", 1, 0, *_source(offset), 0.0)


def _source(offset: int) -> Source:
    return Source("jobs.default.normal", 0, offset)


def _put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])


def _with(world: World, number: int, worker: Worker) -> World:
    return world._replace(workers=_put(world.workers, number, worker))


def _finished(world: World) -> bool:
    idle = not any(worker.tasks for worker in world.workers)
    return idle and world.committed == len(world.records) and all(_has_ended(row) for row in world.rows)


def check(scenario: str, broken: str = "") -> tuple[str, int]:
    """Explore everything. Give the first promise that is found broken (empty: none), and how many worlds there were."""
    records, budget = SCENARIOS[scenario]
    jobs = len(set(records))
    start = World(records, (None,) * jobs, (0,) * jobs, (Worker(), Worker()), None, 0, 0, budget)
    model = Model(broken)
    numbers = {start: 0}  # a world is looked up once for each way to it: hashing one takes long
    worlds: list[World] = [start]
    before: list[list[int]] = [[]]
    for here, world in enumerate(worlds):  # which grows meanwhile
        for following, fault in model.steps(world):
            if fault:
                return fault, len(worlds)
            number = numbers.setdefault(following, len(worlds))
            if number == len(worlds):
                worlds.append(following)
                before.append([])
            before[number].append(here)
    return ("" if _can_finish(worlds, before) else "stuck"), len(worlds)


def _can_finish(worlds: Sequence[World], before: Sequence[Sequence[int]]) -> bool:
    """Whether from each of these some way leads to an end."""
    reach = {number for number, world in enumerate(worlds) if _finished(world)}
    good = deque(reach)
    while good:
        for previous in before[good.popleft()]:
            if previous not in reach:
                reach.add(previous)
                good.append(previous)
    return len(reach) == len(worlds)
