"""Delays: bounded, jittered, never negative, whatever the attempt; and the tier that each goes to."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.core.backoff import Backoff, choose_tier
from pipeline.errors import ConfigError


class Chance:
    """A source of chance that always gives the same number."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


MIDDLE = Chance(0.5)  # no jitter
HIGHEST = Chance(math.nextafter(1.0, 0.0))
BACKOFFS = st.builds(
    Backoff,
    max_attempts=st.integers(1, 1000),
    base=st.floats(0, 3600),
    multiplier=st.floats(1, 100),
    cap=st.floats(3600, 30 * 86_400),
    jitter=st.floats(0, 1),
)


def test_delays_grow_by_the_multiplier_up_to_the_cap() -> None:
    backoff = Backoff(base=5, multiplier=4, cap=300, jitter=0.2)
    assert [backoff.delay(attempt, MIDDLE) for attempt in range(1, 6)] == [5, 20, 80, 300, 300]


def test_jitter_spreads_a_delay_evenly_around_itself() -> None:
    backoff = Backoff(base=10, cap=10, jitter=0.2)
    assert backoff.delay(1, Chance(0.0)) == pytest.approx(8)
    assert backoff.delay(1, HIGHEST) == pytest.approx(12)
    rng = random.Random(4)
    delays = [backoff.delay(1, rng) for _ in range(2000)]
    assert 8 <= min(delays) < 8.1
    assert 11.9 < max(delays) <= 12
    assert sum(delays) / len(delays) == pytest.approx(10, abs=0.1)


@given(backoff=BACKOFFS, attempt=st.integers(1, 10**9), chance=st.floats(0, 1, exclude_max=True))
def test_a_delay_is_bounded_and_never_negative(backoff: Backoff, attempt: int, chance: float) -> None:
    delay = backoff.delay(attempt, Chance(chance))
    assert 0 <= delay <= backoff.cap * (1 + backoff.jitter) * (1 + 1e-12)


@given(backoff=BACKOFFS, attempt=st.integers(1, 10**6))
def test_a_later_attempt_never_waits_less(backoff: Backoff, attempt: int) -> None:
    assert backoff.delay(attempt, MIDDLE) <= backoff.delay(attempt + 1, MIDDLE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 1001),
        ("base", -1),
        ("base", math.nan),
        ("base", math.inf),
        ("multiplier", 0.5),
        ("multiplier", 101),
        ("cap", 1),  # below the base
        ("cap", math.inf),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", math.nan),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"retry policy: {key} is {value}; allowed: \S+ to \S+"):
        Backoff(**{key: value})


TIERS = st.lists(st.floats(0.001, 86_400), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("delay", "tier"), [(0, 10), (10, 10), (10.01, 60), (61, 600), (600, 600), (10_000, 600), (math.inf, 600)]
)
def test_the_tier_is_the_smallest_that_is_not_shorter(delay: float, tier: float) -> None:
    assert choose_tier(delay, [60, 10, 600]) == tier


@given(delay=st.floats(0, 1e6), tiers=TIERS)
def test_no_other_tier_fits_better(delay: float, tiers: list[float]) -> None:
    tier = choose_tier(delay, tiers)
    assert tier in tiers
    assume(max(tiers) >= delay)
    assert tier >= delay
    assert not any(delay <= other < tier for other in tiers)
