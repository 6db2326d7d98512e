"""How large a scenario is run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Seconds, jobs, and jobs a second. `window` is what the rate is measured over."""

    jobs: int
    rate: float
    tenants: int
    warm_up: float
    steady: float
    window: float
    outage: float
    storm: float


QUICK = Scale(jobs=200, rate=50, tenants=8, warm_up=1, steady=2, window=2, outage=5, storm=12)
FULL = Scale(jobs=20_000, rate=500, tenants=8, warm_up=5, steady=10, window=10, outage=60, storm=60)
