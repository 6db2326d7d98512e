"""From a model's values to what fastavro writes, refusing what it would write wrongly.

fastavro checks less than it seems: an Avro int of 2**40, a bool or a float as an int, a time without a zone
(taken for local time) and a decimal of any size are all written without a word (each seen). A *preparer* takes
one value and gives what to write, or raises `Unwritable`. None in place of a preparer means: write it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

__all__ = [
    "Prepare",
    "Unwritable",
    "bounded_decimal",
    "bounded_int",
    "days",
    "instance",
    "items_of",
    "microseconds",
    "optional",
    "real_number",
    "record",
    "symbol",
    "uuid_text",
    "values_of",
]

Prepare: TypeAlias = Callable[[Any], Any]

_ZERO = Decimal(0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()


class Unwritable(Exception):
    """A value that Avro cannot hold. `path` leads to it; the message says what is allowed, never the value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path = ""

    def inside(self, field: str) -> Unwritable:
        """The same complaint, seen from one record further out."""
        self.path = f"{field}.{self.path}" if self.path else field
        return self


def bounded_int(type_: str, bits: int) -> Prepare:
    """Integers that fit; bool is not one."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def prepare(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unwritable(f"is {type(value).__name__}, not an integer")
        if low <= value <= high:
            return value
        raise Unwritable(f"is out of the range of an Avro {type_}: {low} to {high}")

    return prepare


def instance(type_: type) -> Prepare:
    """Values of that class only: fastavro would coerce others silently."""

    def prepare(value: Any) -> Any:
        if isinstance(value, type_):
            return value
        raise Unwritable(f"is {type(value).__name__}, not {type_.__name__}")

    return prepare


def real_number(value: Any) -> Any:
    """Floats, and integers in their place; fastavro would parse text, too."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return value
    raise Unwritable(f"is {type(value).__name__}, not a number")


def uuid_text(value: Any) -> Any:
    """UUIDs as text; fastavro would take any text for one."""
    if isinstance(value, UUID):
        return str(value)
    raise Unwritable(f"is {type(value).__name__}, not UUID")


def microseconds(value: Any) -> Any:
    """Times with a zone as microseconds since 1970; fastavro would read others as local time of this machine."""
    if not isinstance(value, datetime):
        raise Unwritable(f"is {type(value).__name__}, not a datetime")
    try:
        since = value - _EPOCH
    except TypeError:
        raise Unwritable("is a time without a zone; give it one, such as datetime.now(UTC)") from None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def days(value: Any) -> Any:
    """Dates as days since 1970; a datetime is one for Python, but its time of day would be lost."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH_DAY
    raise Unwritable(f"is {type(value).__name__}, not a date")


def bounded_decimal(precision: int, scale: int) -> Prepare:
    """Decimals of at most `precision` digits, `scale` of them after the point."""
    limit = Decimal(1).scaleb(precision - scale)

    def prepare(value: Any) -> Any:
        if not isinstance(value, Decimal) or not value.is_finite():
            raise Unwritable("is not a finite Decimal")
        if not value:
            return _ZERO  # 0E+999999999 is a zero, too, and fastavro would compute that power
        exponent = value.as_tuple().exponent
        if value.copy_abs() < limit and isinstance(exponent, int) and exponent >= -scale:
            return value
        raise Unwritable(f"has more than {precision - scale} digits before or {scale} after the point")

    return prepare


def symbol(enum: type[Enum]) -> Prepare | None:
    """Enum members to their symbols. A `str` enum is one already, as far as fastavro can see."""
    if issubclass(enum, str):
        return None
    return lambda value: value.value if isinstance(value, Enum) else value


def items_of(prepare: Prepare | None) -> Prepare:
    """Lists, each item prepared."""
    is_list = instance(list)
    if prepare is None:
        return is_list
    return lambda value: [prepare(item) for item in is_list(value)]


def values_of(prepare: Prepare | None) -> Prepare:
    """Dictionaries, each value prepared."""
    is_dict = instance(dict)
    if prepare is None:
        return is_dict
    return lambda value: {key: prepare(item) for key, item in is_dict(value).items()}


def optional(branch: str, prepare: Prepare | None) -> Prepare:
    """None, or the named branch of the union: told outright, or fastavro would try every branch."""
    if prepare is None:
        return lambda value: None if value is None else (branch, value)
    return lambda value: None if value is None else (branch, prepare(value))


def record(model: type, fields: Sequence[tuple[str, Prepare]]) -> Prepare:
    """Models to dictionaries. One without a field to prepare costs nothing: its own `__dict__` is used."""
    is_model = instance(model)
    if not fields:
        return lambda value: is_model(value).__dict__

    def prepare(value: Any) -> Mapping[str, Any]:
        values = dict(is_model(value).__dict__)
        for name, prepare_field in fields:
            if name not in values:
                raise Unwritable("is missing").inside(name)
            try:
                values[name] = prepare_field(values[name])
            except Unwritable as error:
                raise error.inside(name) from None
        return values

    return prepare
