"""`python -m bench`: measure, print a table, write build/bench.json (a flat map of figure to number).

The machine is noisy: read ratios, which compare things measured in the same run, rather than single figures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import codec, drain, store
from bench.place import fresh_place
from pipeline.embedded import start_servers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs to drain (default: %(default)s)")
    arguments = parser.parse_args()
    console = Console()
    with start_servers(log=console.print) as servers:
        at = (servers.bootstrap_servers, servers.postgres_dsn)
        figures: dict[str, float] = {}
        with fresh_place(*at) as place:
            figures |= drain.run(place, jobs=arguments.jobs)
        for kind in ("async", "thread"):
            with fresh_place(*at) as place:
                figures |= drain.waiting(place, kind, jobs=arguments.jobs // 4)
        with fresh_place(*at) as place:
            figures |= drain.light(place)
        figures |= store.run(servers.postgres_dsn)
        figures |= codec.run()
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    console.print(table)
    target = Path("build/bench.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(figures, indent=2) + "\n")
    console.print(f"written to {target}")


if __name__ == "__main__":
    main()
