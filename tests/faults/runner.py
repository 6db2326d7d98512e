"""Runs one scenario on a site."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.faults.case import Case, Scenario
from tests.faults.figures import Figures
from tests.faults.scale import Scale
from tests.faults.site import Site

__all__ = ["run_scenario"]


def run_scenario(scenario: Scenario, site: Site, scale: Scale, *, seed: int, folder: Path) -> Figures:
    """Raises AssertionError if a promise was broken. The site is whole again afterwards."""
    print(f"{scenario}: seed {seed}")
    with ExitStack() as stack:
        case = Case(site, scale, seed=seed, folder=folder, stack=stack)
        stack.callback(site.heal)
        scenario.run(case)
        return case.figures
