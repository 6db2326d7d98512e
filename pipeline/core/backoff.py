"""How long a failed job waits, and in which retry topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.core.retry_state import RetryState
from pipeline.errors import ConfigError

__all__ = ["LONGEST_WAIT", "Backoff", "BadDelay", "Random", "RetryPolicy", "checked_delay", "choose_tier"]

LONGEST_WAIT = 30 * 86_400.0  # seconds; a delay beyond it is cut


class BadDelay(ConfigError):
    """A retry policy gave something that is no delay, or none at all."""


class Random(Protocol):
    """Where chance comes from: `random.Random`, or a test's own."""

    def random(self) -> float: ...


class RetryPolicy(Protocol):
    """What a job type needs to know about its retries.

    A policy may also have `give_up_after`, as `Backoff` has. What it raises, or gives that is no delay, harms no job: the
    attempt has failed anyway, and the next one comes after the delay of a default `Backoff`.
    """

    @property
    def max_attempts(self) -> int: ...

    def delay(self, attempt: int, rng: Random) -> float:
        """Seconds to wait after attempt number `attempt` (the first is 1) failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter: base * multiplier ** (attempt - 1), at most `cap`, all in seconds.

    `jitter` spreads the delay evenly over +- that share of itself, so that jobs that failed together do not come back
    together ("full jitter" is jitter=1).

    `wait` gives the delay instead: any `wait_*` object of tenacity, or a function of what such an object is called with;
    `base`, `multiplier`, `cap` and `jitter` then mean nothing.

    `give_up_after` ends a job before its attempts are spent: no retry is due later than so many seconds after the start of
    the first attempt that failed. A retry that would be is not scheduled, and the job is dead with the reason
    `give_up_after`. Replaying it starts the count anew. (So does, for a job type that runs in order, another worker that
    takes the job over between two attempts.)

    Raises `ConfigError` on values that make no sense.
    """

    max_attempts: int = 5
    base: float = 5.0
    multiplier: float = 4.0
    cap: float = 3600.0
    jitter: float = 0.2
    wait: Callable[[Any], float] | None = None
    give_up_after: float | None = None

    def __post_init__(self) -> None:
        _check("max_attempts", self.max_attempts, 1, 1000)
        _check("base", self.base, 0, 10 * 86_400)
        _check("multiplier", self.multiplier, 1, 100)
        _check("cap", self.cap, self.base, LONGEST_WAIT)
        _check("jitter", self.jitter, 0, 1)
        if self.give_up_after is not None:
            _check("give_up_after", self.give_up_after, 0, 3650 * 86_400)
        if self.wait is not None and not callable(self.wait):
            raise ConfigError(
                f"retry policy: wait is {self.wait!r}; allowed: a wait_* object of tenacity, or a function of one argument"
            )

    def delay(self, attempt: int, rng: Random) -> float:
        """Raises what `wait` raises, and `BadDelay`."""
        if self.wait is not None:
            return self.delay_after(RuntimeError("the attempt failed"), attempt)
        # The exponent is bounded: 1.0e308 is soon reached, and the cap is reached long before.
        plain = min(self.cap, self.base * self.multiplier ** min(attempt - 1, 64))
        return plain * (1 + self.jitter * (2 * rng.random() - 1))

    def delay_after(self, error: BaseException, attempt: int) -> float:
        """What `wait` says to the error that ended an attempt. Raises what it raises, and `BadDelay`."""
        if self.wait is None:
            raise BadDelay("retry policy: it has no wait")
        return checked_delay(self.wait(RetryState(attempt, error)))


def checked_delay(value: object) -> float:
    """A delay in seconds, at most `LONGEST_WAIT`. Raises `BadDelay` for what is none."""
    if not isinstance(value, int | float):
        raise BadDelay(
            f"retry policy: its delay is of type {type(value).__name__}; allowed: seconds as a number"
        )
    if not value >= 0:  # NaN is not above anything
        raise BadDelay(f"retry policy: its delay is {value}; allowed: seconds, 0 or more")
    return float(min(value, LONGEST_WAIT))


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
