"""What a scenario measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Figures", "percentile"]


@dataclass
class Figures:
    """Sums over the worlds of a scenario; `merge` adds another run of it."""

    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    fallen: int = 0
    redelivered: int = 0
    memory_mb: float = 0.0
    recoveries: list[float] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def merge(self, other: Figures) -> None:
        self.jobs += other.jobs
        self.lost += other.lost
        self.doubled += other.doubled
        self.fallen += other.fallen
        self.redelivered += other.redelivered
        self.memory_mb = max(self.memory_mb, other.memory_mb)
        self.recoveries += other.recoveries
        for name, value in other.notes.items():
            self.notes[name] = max(value, self.notes.get(name, value))

    def text(self) -> str:
        parts = [f"lost {self.lost}", f"doubled {self.doubled}", f"fallen {self.fallen}"]
        if self.jobs:
            parts.append(f"{1000 * self.redelivered / self.jobs:.1f} redeliveries per 1,000")
        if self.recoveries:
            parts.append(
                f"recovery p50 {percentile(self.recoveries, 50):.1f} s, p95 {percentile(self.recoveries, 95):.1f} s"
            )
        if self.memory_mb:
            parts.append(f"memory {self.memory_mb:.0f} MB")
        parts += [f"{name} {value:g}" for name, value in self.notes.items()]
        return ", ".join([*parts, f"{self.jobs:,} jobs"])


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest value at or above that share of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]
