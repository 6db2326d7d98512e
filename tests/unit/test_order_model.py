"""Jobs of a key run in order, also over retries in place, crashes and rebalances: see `order_model`."""

from __future__ import annotations

import pytest

from tests.unit.order_model import BROKEN, SCENARIOS, check


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_interleaving_breaks_a_promise(scenario: str) -> None:
    fault, worlds = check(scenario)
    assert fault == ""
    assert worlds > 1_000


@pytest.mark.parametrize("broken", BROKEN)
def test_each_protection_is_needed(broken: str) -> None:
    scenario, fault = BROKEN[broken]
    assert check(scenario, broken)[0] == fault
