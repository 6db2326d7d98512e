"""At most so many of a kind at a time, in the order in which they came, and no kind in the way of another."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.core.caps import Caps

LIMITS = {"a": 1, "b": 3}
kinds = st.sampled_from(sorted(LIMITS))


def test_a_kind_without_a_limit_is_left_alone() -> None:
    caps: Caps[str, int] = Caps(LIMITS)
    assert [caps.limited(kind) for kind in ("a", "b", "c")] == [True, True, False]


def test_one_that_comes_later_does_not_pass_one_that_waits() -> None:
    caps: Caps[str, int] = Caps({"a": 1})
    assert caps.enter("a", 1)
    assert not caps.enter("a", 2)
    caps.leave("a")
    assert not caps.enter("a", 3)
    assert caps.admit() == [2]


class CapsMachine(RuleBasedStateMachine):
    """Against the plain idea: per kind, what runs and what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.caps: Caps[str, int] = Caps(LIMITS)
        self.running: dict[str, list[int]] = {kind: [] for kind in LIMITS}
        self.waiting: dict[str, deque[int]] = {kind: deque() for kind in LIMITS}
        self.number = 0

    @rule(kind=kinds)
    def come(self, kind: str) -> None:
        self.number += 1
        may = len(self.running[kind]) < LIMITS[kind] and not self.waiting[kind]
        assert self.caps.enter(kind, self.number) is may
        (self.running if may else self.waiting)[kind].append(self.number)

    @rule(kind=kinds)
    def end(self, kind: str) -> None:
        if self.running[kind]:
            self.running[kind].pop()
            self.caps.leave(kind)

    @rule()
    def admit(self) -> None:
        admitted = self.caps.admit()
        for kind, limit in LIMITS.items():
            expected: list[int] = []
            while self.waiting[kind] and len(self.running[kind]) < limit:
                expected.append(self.waiting[kind].popleft())
                self.running[kind].append(expected[-1])
            assert [item for item in admitted if item in expected] == expected
            admitted = [item for item in admitted if item not in expected]
        assert admitted == []

    @rule(divisor=st.integers(2, 3))
    def forget_some(self, divisor: int) -> None:
        self.caps.keep(lambda item: item % divisor == 0)
        for kind, waiting in self.waiting.items():
            self.waiting[kind] = deque(item for item in waiting if item % divisor == 0)

    @invariant()
    def never_too_many(self) -> None:
        assert all(len(running) <= LIMITS[kind] for kind, running in self.running.items())


TestCaps = CapsMachine.TestCase
TestCaps.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
