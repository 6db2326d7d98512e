"""`pipeline demo`: the main job on embedded servers, every number checked."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console

__all__ = ["command"]


@click.command()
@click.option(
    "--jobs", type=click.IntRange(100, 1_000_000), default=2000, show_default=True, help="How many jobs."
)
def command(jobs: int) -> None:
    """Run the main job on real servers, kill a worker halfway, replay dead letters, and check every number.

    Exit code 1 if one is off. Leaves nothing behind.
    """
    from pipeline.demo.run import run_demo  # noqa: PLC0415 - needs the extra `embedded`
    from pipeline.demo.work import Plan  # noqa: PLC0415

    console = Console(highlight=False)
    started = time.monotonic()
    plan = Plan(each=jobs // 2, twice=jobs // 20, once=2 * (jobs // 60), always=2 * (jobs // 200))
    holds = run_demo(console, plan)
    console.print(
        f"{'every number is right' if holds else 'a number is off'}, in {time.monotonic() - started:.1f} s"
    )
    sys.exit(0 if holds else 1)
