"""What the state machines of the protocol share: their one rule, and how they run on a real store."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.protocol_steps import ENDS, STEPS, WHEN, Steps
from tests.contract.protocol_twins import Store
from tests.contract.protocol_world import World

__all__ = ["Machine", "hold_on"]


class Machine(RuleBasedStateMachine):
    """All steps in one rule: hypothesis leaves whole rules out of an example, and without one of them nothing happens.

    A kind of it makes `world` and `steps` when an example begins. Without a `store` it makes one in memory.
    """

    store: ClassVar[Store | None] = None
    world: World
    steps: Steps

    @rule(
        step=st.sampled_from(STEPS),
        number=st.integers(0, 5),
        end=st.sampled_from(ENDS),
        when=st.sampled_from(WHEN),
    )
    def happens(self, step: str, number: int, end: str, when: str) -> None:
        self.steps.happens(step, number, end=end, when=when)

    @invariant()
    def every_promise_holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if not self.world.truth.broken:
            self.world.heal()


def hold_on(on_store: Store, machine: type[Machine], *, examples: int, steps: int) -> None:
    """Run that machine on a store of the test's."""

    class OnStore(machine):  # type: ignore[valid-type,misc]
        store = on_store

    effort = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(OnStore, settings=effort)
