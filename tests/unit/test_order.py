"""The gate that lets one job of a key go on at a time, against a plain list."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.core.order import KeyGate

PLACES, KEYS = st.sampled_from([0, 1]), st.sampled_from("abc")


class Item:
    """Told apart by identity, as deliveries are."""

    def __init__(self, place: int, key: str, number: int) -> None:
        self.place, self.key, self.number = place, key, number

    def __repr__(self) -> str:
        return f"{self.place}{self.key}{self.number}"


class Gate(RuleBasedStateMachine):
    """The model is one list of everything that has not left, in the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: KeyGate[int, Item] = KeyGate()
        self.all: list[Item] = []
        self.let_go_on: list[Item] = []
        self.former: list[Item] = []  # of lines that were dropped
        self.count = 0

    def _new(self, place: int, key: str) -> Item:
        self.count += 1
        return Item(place, key, self.count)

    def _line(self, place: int, key: str) -> list[Item]:
        return [item for item in self.all if (item.place, item.key) == (place, key)]

    @rule(place=PLACES, key=KEYS)
    def enter(self, place: int, key: str) -> None:
        item = self._new(place, key)
        goes_on = self.gate.enter(place, key, item)
        assert goes_on is (not self._line(place, key))
        self.all.append(item)
        if goes_on:
            self.let_go_on.append(item)

    @precondition(lambda self: self.let_go_on)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.let_go_on))
        follower = self.gate.leave(item.place, item.key, item)
        self.let_go_on.remove(item)
        self.all.remove(item)
        line = self._line(item.place, item.key)
        assert follower is (line[0] if line else None)
        if follower is not None:
            self.let_go_on.append(follower)

    @precondition(lambda self: self.let_go_on)
    @rule(data=st.data())
    def run_again(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.let_go_on))
        other = self._new(item.place, item.key)
        self.gate.replace(item.place, item.key, item, other)
        self.all[self.all.index(item)] = other
        self.let_go_on[self.let_go_on.index(item)] = other
        self.former.append(item)

    @rule(place=PLACES)
    def drop(self, place: int) -> None:
        waiting = [item for item in self.all if item.place == place and item not in self.let_go_on]
        assert sorted(map(repr, self.gate.drop(place))) == sorted(map(repr, waiting))
        self.former += [item for item in self.all if item.place == place]
        self.all = [item for item in self.all if item.place != place]
        self.let_go_on = [item for item in self.let_go_on if item.place != place]

    @precondition(lambda self: self.former)
    @rule(data=st.data())
    def late_return(self, data: st.DataObject) -> None:
        """What comes back from an assignment that is over moves nothing, whatever stands in its place by now."""
        item = data.draw(st.sampled_from(self.former))
        self.gate.replace(item.place, item.key, item, self._new(item.place, item.key))
        assert self.gate.leave(item.place, item.key, item) is None

    @invariant()
    def one_of_each_key_goes_on(self) -> None:
        keys = [(item.place, item.key) for item in self.let_go_on]
        assert len(set(keys)) == len(keys)
        assert set(keys) == {(item.place, item.key) for item in self.all}


TestGate = Gate.TestCase


def test_keys_do_not_wait_for_each_other() -> None:
    gate: KeyGate[int, str] = KeyGate()
    assert gate.enter(0, "a", "a1")
    assert gate.enter(0, "b", "b1")
    assert gate.enter(1, "a", "a1 of another partition")
    assert not gate.enter(0, "a", "a2")
