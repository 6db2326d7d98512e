"""Array parameters as Postgres array literals, a whole column at a time.

Psycopg adapts a list element by element in Python. With ten columns that cost more than all the rest of a claim;
a literal is a join or two.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["micros", "numbers", "texts"]


def texts(values: Sequence[str]) -> str:
    """A literal of text, or of anything that is written without spaces and braces, such as a uuid."""
    if not values:
        return "{}"
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') != 2 * (len(values) - 1):
        joined = '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values])
    return f'{{"{joined}"}}'


def numbers(values: Sequence[float]) -> str:
    """A literal of whole numbers or of floats, exact to the last bit."""
    return f"{{{','.join(map(repr, values))}}}"


def micros(times: Sequence[float]) -> str:
    """A literal of times in seconds, as whole microseconds: what Postgres keeps, and a third of the cost of floats."""
    return f"{{{','.join([str(int(time * 1e6 + 0.5)) for time in times])}}}"
