"""`python -m bench [PART ...]`: measure, print a table, write build/bench.json (a flat map of figure to number).

The machine is noisy: read ratios, which compare things measured in the same run, rather than single figures. What would
take many minutes is measured in small unless `--full` is given; figures that belong to a size have it in their names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import codec, desk, drain, memory, recovery, retries, scale, store
from bench.place import Figures, fresh_place
from pipeline.embedded import Servers, start_servers
from pipeline.runtime import buffer

Part = Callable[[Servers, argparse.Namespace], Figures]


def _drain(servers: Servers, arguments: argparse.Namespace) -> Figures:
    jobs = arguments.jobs
    at = (servers.bootstrap_servers, servers.postgres_dsn)
    with fresh_place(*at) as place:
        figures = drain.run(place, jobs=jobs)
    for kind in ("async", "thread"):
        with fresh_place(*at) as place:
            figures |= drain.waiting(place, kind, jobs=jobs // 4)
    with fresh_place(*at) as place:
        return figures | drain.light(place)


def _retries(servers: Servers, _: argparse.Namespace) -> Figures:
    with fresh_place(servers.bootstrap_servers, servers.postgres_dsn) as place:
        return retries.run(place)


def _recovery(servers: Servers, arguments: argparse.Namespace) -> Figures:
    with fresh_place(servers.bootstrap_servers, servers.postgres_dsn) as place:
        return recovery.run(place, rounds=5 if arguments.full else 1)


PARTS: Mapping[str, Part] = {
    "drain": _drain,
    "store": lambda servers, _: store.run(servers.postgres_dsn),
    "codec": lambda _servers, _: codec.run(),
    "retries": _retries,
    "desk": lambda servers, _: desk.run(servers.bootstrap_servers, servers.postgres_dsn),
    "recovery": _recovery,
    "memory": lambda servers, arguments: memory.run(servers, full=arguments.full),
    "scale": lambda servers, arguments: scale.run(servers, full=arguments.full),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all of them)"
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs to drain (default: %(default)s)")
    parser.add_argument(
        "--full", action="store_true", help="with a million jobs, five million rows and five kills"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    console = Console()
    figures: Figures = {"compiled": float(_is_compiled())}
    console.print(f"measuring {'native code' if figures['compiled'] else 'plain Python'}")
    with start_servers(log=console.print) as servers:
        for name in arguments.parts or PARTS:
            figures |= PARTS[name](servers, arguments)
    _tell(console, figures)


def _is_compiled() -> bool:
    return not str(buffer.__file__).endswith(".py")


def _tell(console: Console, figures: Figures) -> None:
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
