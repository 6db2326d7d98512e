"""Two protections that are cheap to miss, and that the scenarios can tell; `make faults` takes out all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import rows
from tests.faults.mutants import MUTANTS, restore
from tests.faults.mutations import catch, scenario_for
from tests.faults.site import Site

assert rows  # importing them registers the scenarios


@pytest.mark.parametrize("name", MUTANTS)
def test_each_protection_is_found_where_it_is_taken_out_and_has_its_scenario(name: str) -> None:
    try:
        MUTANTS[name].patch()
    finally:
        restore()
    scenario_for(MUTANTS[name])


@pytest.mark.servers
@pytest.mark.parametrize(
    ("name", "says"),
    [("letter_bytes", "undecodable"), ("expiry", "CRITICAL")],
)
def test_a_scenario_fails_without(name: str, says: str, site: Site, tmp_path: Path) -> None:
    assert says in catch(MUTANTS[name], site, seed=1, folder=tmp_path)
