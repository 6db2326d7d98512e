"""`python -m tests.faults`: all rows, the mutations, the random campaign, and docs/reliability.md.

With `load`, many jobs; with `mutations` or `campaign`, these alone.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults import rows
from tests.faults.campaign import run_campaign
from tests.faults.case import SCENARIOS
from tests.faults.load_run import run_load
from tests.faults.mutants import MUTANTS
from tests.faults.mutations import run_mutation
from tests.faults.report import WITHOUT, Result, load_results, save_results, write_report
from tests.faults.runner import add_run, commit
from tests.faults.scale import FULL, QUICK, Scale
from tests.faults.site import Site
from tests.harness.processes import ROOT

assert rows  # importing them registers the scenarios

RESULTS = ROOT / "build" / "faults.json"
REPORT = ROOT / "docs" / "reliability.md"


def main() -> int:
    options = _options()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # told to stop, it still stops its workers and servers
    logging.getLogger("pipeline.kafka").setLevel(logging.ERROR)  # that brokers are away is what it is about
    results = {} if options.fresh else load_results(RESULTS)
    wanted = {int(number) for number in options.rows.split(",")} if options.rows else None
    scale = QUICK if options.quick else replace(FULL, jobs=options.jobs, outage=options.outage)
    failed = False
    with tempfile.TemporaryDirectory(prefix="faults-") as name, Site(Path(name) / "site") as site:
        for key in _names(options.what, wanted, minutes=options.campaign_minutes, mutants=options.mutants):
            result = Result(
                commit=commit(),
                date=time.strftime("%Y-%m-%d"),
                scale=_told(scale) if key.isdigit() else "as told below",
            )
            _run(key, result, site, scale, options, Path(name))
            results[key] = [*(results.get(key, []) if options.more else []), result]
            failed = failed or not result.passed
            save_results(RESULTS, results)
            write_report(REPORT, results, window=scale.window)
    print(f"{'some promises were broken' if failed else 'all promises held'}: {REPORT.relative_to(ROOT)}")
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["rows", "load", "mutations", "campaign"], default="rows")
    parser.add_argument("--rows", default="", metavar="1,2,...", help="only these rows, and no campaign")
    parser.add_argument(
        "--mutants", nargs="*", default=[], choices=list(MUTANTS), metavar="NAME", help="only these mutations"
    )
    parser.add_argument("--jobs", type=int, default=FULL.jobs, help="of each scenario, or of the load")
    parser.add_argument("--outage", type=float, default=FULL.outage, help="seconds that outages last")
    parser.add_argument("--seeds", default="", metavar="1,2,...", help="by default two drawn ones")
    parser.add_argument("--campaign-minutes", type=float, default=15)
    parser.add_argument("--quick", action="store_true", help="at the scale of the test suite")
    parser.add_argument(
        "--more",
        action="store_true",
        help="keep what earlier runs of the same gave, also with other code; by default it is replaced",
    )
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have measured")
    options = parser.parse_args()
    options.seeds = [int(seed) for seed in options.seeds.split(",") if seed] or [
        random.randrange(10**6) for _ in range(2)
    ]
    return options


def _names(what: str, wanted: set[int] | None, *, minutes: float, mutants: Sequence[str]) -> list[str]:
    """What is run: rows by their number, and the rest by name."""
    mutations = [WITHOUT + name for name in mutants or MUTANTS]
    if what != "rows":
        return mutations if what == "mutations" else [what]
    numbers = sorted({each.row for each in SCENARIOS} & (wanted or {each.row for each in SCENARIOS}))
    return [
        *map(str, numbers),
        *(mutations if wanted is None else []),
        *(["campaign"] if wanted is None and minutes else []),
    ]


def _run(
    key: str, result: Result, site: Site, scale: Scale, options: argparse.Namespace, folder: Path
) -> None:
    if key == "load":
        run_load(result, site, jobs=options.jobs, seed=options.seeds[0], folder=folder / key)
        return
    if key.startswith(WITHOUT):
        mutant = MUTANTS[key.removeprefix(WITHOUT)]
        run_mutation(result, site, mutant, seed=options.seeds[0], folder=folder / mutant.name)
        return
    if key == "campaign":
        minutes, seed = options.campaign_minutes, options.seeds[0]
        run_campaign(result, site, scale, minutes=minutes, seed=seed, folder=folder / key)
        return
    for seed in options.seeds:
        for number, scenario in enumerate([each for each in SCENARIOS if each.row == int(key)]):
            place = folder / f"{key}-{number}-{seed}"
            add_run(result, scenario, site, scale, seed=seed, folder=place)


def _told(scale: Scale) -> str:
    return f"{scale.jobs:,} jobs or more a run at {scale.rate:g} a second, outages of {scale.outage:g} s"


if __name__ == "__main__":
    sys.exit(main())
