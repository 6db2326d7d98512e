"""Random interleavings of the real claim, settle and commit code keep every promise, with either store.

After each step of a worker, of the group, of the store or of an operator nothing may be lost, run beside itself, be settled
by a late worker or complete twice, and no committed offset may fall. At the end all faults are healed, and everything must
come to rest. The last tests take one protection out at a time, and the broken promise must be noticed.
"""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.adapters.postgres import PostgresJobStore
from pipeline.core.clock import ManualClock
from tests.contract.protocol_breaks import BREAKS, Break
from tests.contract.protocol_machine import Machine, hold_on
from tests.contract.protocol_steps import Steps, interleave
from tests.contract.protocol_twins import Store
from tests.contract.protocol_worker import Parts
from tests.contract.protocol_world import Violation, World

WORTHWHILE_SEEDS = 800  # chance finds each of the broken protocols far sooner


def new_world(
    *, store: Store | None = None, partitions: int = 2, in_order: bool = False, parts: Parts | None = None
) -> World:
    clock = ManualClock(1_600_000_000.0)  # long past for a database, so that what is due here is due there
    name = uuid.uuid4().hex  # other jobs and workers in each world, so that one database serves many
    return World(
        store or MemoryJobStore(clock),
        clock,
        name=name,
        partitions=partitions,
        in_order=in_order,
        parts=parts,
    )


def world_of(seed: int, *, store: Store | None = None, parts: Parts | None = None) -> World:
    return new_world(store=store, partitions=1 + seed % 2, in_order=seed % 4 > 1, parts=parts)


class ProtocolMachine(Machine):
    @initialize(partitions=st.integers(1, 2), in_order=st.booleans())
    def start(self, partitions: int, *, in_order: bool) -> None:
        self.world = new_world(store=self.store, partitions=partitions, in_order=in_order)
        self.steps = Steps(self.world)


ProtocolMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=60, deadline=None)
TestProtocolInMemory = ProtocolMachine.TestCase


@pytest.mark.servers
def test_every_promise_holds_on_postgres(postgres_store: PostgresJobStore) -> None:
    hold_on(postgres_store, ProtocolMachine, examples=25, steps=60)


@pytest.mark.servers
def test_every_promise_holds_on_postgres_by_chance_too(postgres_store: PostgresJobStore) -> None:
    for seed in range(40):
        world = world_of(seed, store=postgres_store)
        assert interleave(world, random.Random(seed)) is None, f"seed {seed}"


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_every_promise_holds_by_chance_too(start: int) -> None:
    """Without hypothesis the interleavings are plainer, but longer, and there are many more of them."""
    for seed in range(start, start + 40):
        world = world_of(seed)
        assert interleave(world, random.Random(seed), steps=120) is None, f"seed {seed}"


@pytest.mark.parametrize("name", [name for name, each in BREAKS.items() if each.course])
def test_a_course_of_events_that_only_one_protection_survives(name: str) -> None:
    taken_out = BREAKS[name]
    assert course_of(taken_out, Parts()) is None
    assert_noticed(course_of(taken_out, taken_out.parts), taken_out)


def course_of(taken_out: Break, parts: Parts) -> Violation | None:
    world = new_world(partitions=1, parts=parts)
    assert taken_out.course is not None
    try:
        taken_out.course(world)
        world.check()
        world.heal()
    except Violation as violation:
        return violation
    return None


@pytest.mark.parametrize("name", [name for name, each in BREAKS.items() if not each.course])
def test_a_protection_that_is_taken_out_is_missed(name: str) -> None:
    taken_out = BREAKS[name]
    worlds = (world_of(seed, parts=taken_out.parts) for seed in range(WORTHWHILE_SEEDS))
    found = (interleave(world, random.Random(seed)) for seed, world in enumerate(worlds))
    assert_noticed(next((violation for violation in found if violation), None), taken_out)


def assert_noticed(violation: Violation | None, taken_out: Break) -> None:
    assert violation is not None, "nothing was noticed"
    assert str(violation).split(":")[0] in taken_out.broken
