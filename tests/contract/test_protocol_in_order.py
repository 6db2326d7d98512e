"""Random interleavings of the real code for job types that run in order: besides the promises to all jobs, those of order.

order     no job is granted while one of its key that was published before it has not ended
attempts  a run's number is one more than the failures of its job, whoever has run it
early     a retry is not granted before it is due (in memory: a database has a clock of its own)
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.adapters.postgres import PostgresJobStore
from pipeline.core.claims import Claim, ClaimRequest, Settlement
from pipeline.core.clock import ManualClock
from pipeline.core.headers import parse_job
from pipeline.core.job import Job, Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import Outgoing
from pipeline.core.state import JobState
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.delivery import Delivery
from tests.contract.protocol_breaks import Around
from tests.contract.protocol_machine import Machine, hold_on
from tests.contract.protocol_steps import Steps, interleave
from tests.contract.protocol_twins import Store, WatchedStore
from tests.contract.protocol_worker import MAIL, Parts
from tests.contract.protocol_world import Truth, Violation, World
from tests.unit.runtime_parts import MAIN

ENDED = (JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD)
TENANTS = 2


class OrderTruth(Truth):
    """What an observer knows who also looks at the order."""

    def __init__(self, world: OrderedWorld) -> None:
        super().__init__(world)
        self.expected: dict[tuple[str, int], tuple[int, float]] = {}  # job, hop -> next attempt, due time

    def see_claim(self, worker_id: str, request: ClaimRequest, claim: Claim) -> None:
        super().see_claim(worker_id, request, claim)
        attempt, due_at = self.expected.get((request.job_id, request.hop), (1, 0.0))
        if (claim.attempt or request.attempt) != attempt:
            self.violated(f"attempts: {claim} for {request}, but it is attempt {attempt}")
        if self.world.clock.time() < due_at and not isinstance(self.world.rows, PostgresJobStore):
            self.violated(f"early: {request} is due at {due_at}")
        for job in self._before(request):
            row = self.world.rows.job(job.job_id)
            if row is None or (row.state not in ENDED and row.hop <= job.hop):
                self.violated(f"order: {request} is granted before {job}, which is {row and row.state}")

    def _before(self, request: ClaimRequest) -> Iterator[Job]:
        for record in self.world.broker.records(MAIN):
            if record.partition == request.partition and record.offset < request.offset:
                job = parse_job(record, queue="default").job
                if job.tenant == request.tenant and job.job_id not in (request.job_id, *self.completed):
                    yield job

    def see_settlement(self, settlement: Settlement) -> None:
        super().see_settlement(settlement)
        if settlement.state is JobState.RETRYING:
            known = (settlement.row_attempt, settlement.due_at)
            self.expected[(settlement.job_id, settlement.hop)] = known


class OrderedWorld(World):
    """Jobs of few keys: each publishing is another job, and a copy lies in the partition of its key."""

    def __init__(self, store: Store, clock: ManualClock, *, partitions: int, parts: Parts) -> None:
        super().__init__(
            store, clock, name=uuid.uuid4().hex, partitions=partitions, in_order=True, parts=parts
        )
        self.truth = OrderTruth(self)
        self.store = WatchedStore(self.parts.store(store), self.faults, self.truth)

    def publish(self, key: str) -> None:
        number = str(len(self.job_ids))
        published = self.publisher.publish(MAIL, {"to": number}, tenant=f"tenant-{int(key) % TENANTS}")
        self.job_ids[number] = published.job_id

    def copy(self, record: Record) -> None:
        self._send(Outgoing(MAIN, record.key, record.value, record.headers))


def new_world(*, store: Store | None = None, partitions: int = 1, parts: Parts | None = None) -> OrderedWorld:
    clock = ManualClock(1_600_000_000.0)
    return OrderedWorld(
        store or MemoryJobStore(clock),
        clock,
        partitions=partitions,
        parts=parts or Parts(),
    )


class MoreJobs(Steps):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.budget["publish"] = 6
        world.publish("0")


class OrderMachine(Machine):
    @initialize(partitions=st.integers(1, 2))
    def start(self, partitions: int) -> None:
        self.world = new_world(store=self.store, partitions=partitions)
        self.steps = MoreJobs(self.world)


OrderMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
TestOrderInMemory = OrderMachine.TestCase


@pytest.mark.servers
def test_every_promise_holds_on_postgres(postgres_store: PostgresJobStore) -> None:
    hold_on(postgres_store, OrderMachine, examples=10, steps=40)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_every_promise_holds_by_chance_too(start: int) -> None:
    for seed in range(start, start + 50):
        world = new_world(partitions=1 + seed % 2)
        assert interleave(world, random.Random(seed), steps=120) is None, f"seed {seed}"


class ForgetsAttempts(Around):
    """The attempt is the one in the record, which is the same for each of them."""

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        return [each._replace(attempt=0) for each in self.inner.claim(worker_id, requests)]


class NoLines(Buffer):
    """Any job may go on, whatever is before it."""

    def __init__(self, settings: BufferSettings) -> None:
        super().__init__(settings._replace(in_order=()))


class LetsTheNextGo(Buffer):
    """A failed job leaves its line."""

    def wait_in_place(self, retries: Iterable[tuple[Delivery, int, float]]) -> None:
        retries = list(retries)
        super().wait_in_place(retries)
        for delivery, *_ in retries:
            lines = self._gate._lines.get(delivery.partition, {}).values()
            firsts = [line[0] for line in lines if line[0].job.job_id == delivery.job.job_id]
            for first in firsts:
                self._let_next_go(first)


class KeepsLines(Buffer):
    """A line does not go with its partition: what comes after it waits for one that is gone."""

    def withdraw(self, partitions: Iterable[Partition]) -> None:
        lines = self._gate._lines
        self._gate._lines = {}
        super().withdraw(partitions)
        self._gate._lines = lines


BREAKS = {
    "no lines": (Parts(buffer=NoLines), "order"),
    "a failed job leaves its line": (Parts(buffer=LetsTheNextGo), "order"),
    "lines stay": (Parts(buffer=KeepsLines), "stuck"),
    "attempts are the record's": (Parts(store=ForgetsAttempts), "attempts"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_protection_that_is_taken_out_is_missed(name: str) -> None:
    parts, broken = BREAKS[name]
    worlds = (new_world(partitions=1, parts=parts) for _ in range(400))
    found = (interleave(world, random.Random(seed)) for seed, world in enumerate(worlds))
    violation: Violation | None = next((each for each in found if each), None)
    assert violation is not None, "nothing was noticed"
    assert str(violation).split(":")[0] == broken
