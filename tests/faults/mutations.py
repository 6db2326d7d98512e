"""A test that passes without the protection that it tests proves nothing: each is taken out once, and a scenario must fail."""

from __future__ import annotations

from pathlib import Path

from tests.faults.case import SCENARIOS, Scenario
from tests.faults.matrix import NotHere
from tests.faults.mutants import MARK, Mutant, restore
from tests.faults.report import Result
from tests.faults.runner import first_line, run_scenario
from tests.faults.scale import QUICK
from tests.faults.site import Site

__all__ = ["catch", "run_mutation", "scenario_for"]

_PATIENCE = 40.0  # seconds for jobs that may never end


def run_mutation(result: Result, site: Site, mutant: Mutant, *, seed: int, folder: Path) -> None:
    """Put a remark to the result: the row of the scenario, and what was found broken without the protection."""
    scenario = scenario_for(mutant)
    result.runs, result.seeds = result.runs + 1, [*result.seeds, seed]
    print(f"without: {mutant.protection}", flush=True)
    try:
        broken = catch(mutant, site, seed=seed, folder=folder)
    except NotHere as missing:
        broken = f"not here: {missing}"
    if not broken:
        result.failures.append(f"{scenario} holds without this: {mutant.protection}")
    print(f"  {broken or 'NOT CAUGHT'}", flush=True)
    result.remarks.append(
        f"| {mutant.protection} | {scenario.row} | {broken.replace('|', '/') or 'not caught'} |"
    )


def catch(mutant: Mutant, site: Site, *, seed: int, folder: Path) -> str:
    """What the scenario finds broken; empty when it does not notice. Raises `NotHere`."""
    if mutant.in_driver:
        mutant.patch()
    program = ("-m", "pipeline") if mutant.in_driver else ("-m", "tests.faults.mutants", mutant.name)
    try:
        run_scenario(
            scenario_for(mutant), site, QUICK, seed=seed, folder=folder, program=program, patience=_PATIENCE
        )
    except NotHere:
        raise
    except Exception as error:  # noqa: BLE001 - a scenario that cannot even end has found something
        broken = f"{type(error).__name__}: {first_line(error)[:160]}"
    else:
        broken = ""
    finally:
        restore()
    assert mutant.in_driver or list(folder.glob(f"*/{MARK}")), f"not taken out: {mutant.protection}"
    return broken


def scenario_for(mutant: Mutant) -> Scenario:
    return next(each for each in SCENARIOS if str(each).startswith(mutant.caught_by))
