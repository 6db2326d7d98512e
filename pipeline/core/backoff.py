"""How long a failed job waits, and in which retry topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.errors import ConfigError

__all__ = ["Backoff", "Random", "RetryPolicy", "choose_tier"]


class Random(Protocol):
    """Where chance comes from: `random.Random`, or a test's own."""

    def random(self) -> float: ...


class RetryPolicy(Protocol):
    """What a job type needs to know about its retries."""

    @property
    def max_attempts(self) -> int: ...

    def delay(self, attempt: int, rng: Random) -> float:
        """Seconds to wait after attempt number `attempt` (the first is 1) failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter: base * multiplier ** (attempt - 1), at most `cap`, all in seconds.

    `jitter` spreads the delay evenly over +- that share of itself, so that jobs that failed together do not come back
    together ("full jitter" is jitter=1). Raises `ConfigError` on values that make no sense.
    """

    max_attempts: int = 5
    base: float = 5.0
    multiplier: float = 4.0
    cap: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _check("max_attempts", self.max_attempts, 1, 1000)
        _check("base", self.base, 0, 10 * 86_400)
        _check("multiplier", self.multiplier, 1, 100)
        _check("cap", self.cap, self.base, 30 * 86_400)
        _check("jitter", self.jitter, 0, 1)

    def delay(self, attempt: int, rng: Random) -> float:
        # The exponent is bounded: 1.0e308 is soon reached, and the cap is reached long before.
        plain = min(self.cap, self.base * self.multiplier ** min(attempt - 1, 64))
        return plain * (1 + self.jitter * (2 * rng.random() - 1))


def _check(key: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"retry policy: {key} is {value}; allowed: {least:g} to {most:g}")


def choose_tier(delay: float, tiers: Sequence[float]) -> float:
    """The smallest tier that is not shorter than `delay`; the longest when all are shorter.

    A record waits until its due time whatever its topic is called: the tier only groups records of like delays, and
    bounds how long the topic must keep them.
    """
    fitting = [tier for tier in tiers if tier >= delay]
    return min(fitting) if fitting else max(tiers)
