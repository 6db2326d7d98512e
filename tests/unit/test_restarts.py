"""When a member that died is started again."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pipeline.core.restarts import RestartPolicy, Restarts

POLICY = RestartPolicy(base=1, cap=20, settled_after=60)


def test_each_wait_is_twice_the_one_before_up_to_the_cap() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.wait_after(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, 20, 20]


def test_one_that_lived_for_a_while_begins_anew() -> None:
    restarts = Restarts(POLICY)
    for _ in range(4):
        restarts.wait_after(0.1)
    assert restarts.wait_after(59.9) == 16
    assert restarts.wait_after(60) == 1
    assert restarts.wait_after(0.1) == 2


@pytest.mark.parametrize("deaths", [10_000])
def test_it_waits_no_longer_than_the_cap_however_often_it_dies(deaths: int) -> None:
    restarts = Restarts(POLICY)
    assert max(restarts.wait_after(0) for _ in range(deaths)) == 20


@given(st.lists(st.floats(0, 200), max_size=50))
def test_no_wait_is_shorter_than_the_first_or_longer_than_the_cap(lives: list[float]) -> None:
    restarts = Restarts(POLICY)
    assert all(1 <= restarts.wait_after(lived) <= 20 for lived in lives)
