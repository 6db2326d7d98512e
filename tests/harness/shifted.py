"""`python -m tests.harness.shifted ARGUMENTS`: `pipeline ARGUMENTS` with a clock that a test sets wrong while it runs.

Only what Python code of the process is told by `time.time` is shifted; its monotonic clock stays real.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

__all__ = ["shift_clock"]


def shift_clock(folder: Path, seconds: float) -> None:
    """From now on shifted processes of the world in this folder are so much ahead."""
    fresh = folder / "clock.new"
    fresh.write_text(str(seconds))
    fresh.rename(folder / "clock")


def main() -> None:
    told = Path(os.environ["HARNESS_FOLDER"]) / "clock"
    real = time.time

    def shifted() -> float:
        return real() + float(told.read_text())

    time.time = shifted
    sys.argv[0] = "pipeline"
    runpy.run_module("pipeline", run_name="__main__")


if __name__ == "__main__":
    main()
