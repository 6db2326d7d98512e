"""The quick tier: a scenario for each of the faults that are most likely, at a small scale."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import rows
from tests.faults.case import SCENARIOS, Scenario
from tests.faults.runner import run_scenario
from tests.faults.scale import QUICK
from tests.faults.site import Site

assert rows  # importing them registers the scenarios


@pytest.mark.servers
@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.quick], ids=str)
def test_the_promises_hold_under(scenario: Scenario, site: Site, tmp_path: Path) -> None:
    figures = run_scenario(scenario, site, QUICK, seed=random.randrange(10**6), folder=tmp_path)
    print(figures.text())
