"""Runs scenarios on a site."""

from __future__ import annotations

import subprocess
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.faults.case import Case, Scenario
from tests.faults.figures import Figures
from tests.faults.matrix import NotHere
from tests.faults.report import Result
from tests.faults.scale import Scale
from tests.faults.site import Site
from tests.harness.processes import ROOT

__all__ = ["add_run", "commit", "first_line", "run_scenario"]


def run_scenario(
    scenario: Scenario, site: Site, scale: Scale, *, seed: int, folder: Path, **options: Any
) -> Figures:
    """`options` are those of `Case`. Raises AssertionError if a promise was broken. The site is whole again afterwards."""
    print(f"{scenario}: seed {seed}", flush=True)
    with ExitStack() as stack:
        case = Case(site, scale, seed=seed, folder=folder, stack=stack, **options)
        stack.callback(site.heal)
        scenario.run(case)
        return case.figures


def add_run(result: Result, scenario: Scenario, site: Site, scale: Scale, *, seed: int, folder: Path) -> None:
    """Run it, and put what came of it to the result."""
    result.runs += 1
    if seed not in result.seeds:
        result.seeds.append(seed)
    began = time.monotonic()
    try:
        figures = run_scenario(scenario, site, scale, seed=seed, folder=folder)
    except NotHere as missing:
        result.not_here = str(missing)
    except Exception as error:  # noqa: BLE001 - whatever it is, the rest is run
        reason = first_line(error)
        result.failures.append(f"{scenario}, seed {seed}: {type(error).__name__}: {reason[:300]}")
        print(f"  FAIL after {time.monotonic() - began:.0f} s: {str(error)[:6000] or reason}", flush=True)
    else:
        result.figures.merge(figures)
        print(f"  pass after {time.monotonic() - began:.0f} s: {figures.text()}", flush=True)


def first_line(error: Exception) -> str:
    """Of its text; of an assertion without one, what was asserted."""
    text = str(error).strip() or str(traceback.extract_tb(error.__traceback__)[-1].line)
    return text.splitlines()[0]


def commit() -> str:
    """The code that is run; the report, which the run itself writes, is none of it."""
    name = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/reliability.md")
    return (name + ("-dirty" if changed else "")) or "unknown"


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    return found.stdout.strip()
