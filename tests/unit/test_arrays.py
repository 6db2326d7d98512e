"""Array literals: what Postgres reads from them is what was put in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.adapters.postgres.arrays import micros, numbers, texts
from pipeline.core.job import EPOCH_LIMIT


def test_an_array_without_items_is_an_empty_one() -> None:
    assert (texts([]), numbers([]), micros([])) == ("{}", "{}", "{}")


def test_quotes_and_backslashes_are_escaped() -> None:
    assert texts(["plain", 'a "b"', "c\\d"]) == r'{"plain","a \"b\"","c\\d"}'


@given(st.integers(0, int(EPOCH_LIMIT) * 1_000_000))
def test_a_time_of_whole_microseconds_is_kept_to_the_last_one(micro: int) -> None:
    """Up to the year 2106 a float of seconds tells microseconds apart; rounding finds the one that was meant."""
    seconds = micro / 1e6
    assert abs(int(micros([seconds])[1:-1]) - micro) <= (0 if seconds < 2**32 else 1)


def test_times_are_rounded_to_the_nearest_microsecond() -> None:
    assert micros([0.0, 1.9999999, 1_800_000_000.123456]) == "{0,2000000,1800000000123456}"
