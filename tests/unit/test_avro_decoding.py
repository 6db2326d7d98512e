"""The decoder for payloads against a general one: the same values from the same bytes, and bad bytes are refused."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from pipeline.adapters.avro.decoding import Cursor, decoder

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONG = st.integers(-(2**63), 2**63 - 1)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

# Schemas, each with what may be written with it.
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", LONG),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=200)),
    ("string", TEXT),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(10**13), 10**14)),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.integers(-(10**16), 10**17)),
    ({"type": "long", "logicalType": "unheard-of"}, LONG),
    (DECIMAL, st.decimals(-9_999_999, 9_999_999, places=2)),
]


def pair(name: str) -> st.SearchStrategy[tuple[Any, Any]]:
    """A schema and a value; named types have names that start with `name`."""
    leaf = st.sampled_from(LEAVES).flatmap(lambda each: st.tuples(st.just(each[0]), each[1]))
    fixed = st.binary(min_size=4, max_size=4).map(
        lambda raw: ({"type": "fixed", "name": f"{name}F", "size": 4}, raw)
    )
    enum = st.sampled_from("abc").map(
        lambda symbol: ({"type": "enum", "name": f"{name}E", "symbols": ["a", "b", "c"]}, symbol)
    )
    return leaf | fixed | enum


def nested(name: str, depth: int) -> st.SearchStrategy[tuple[Any, Any]]:
    inner = pair(name) if depth == 0 else nested(f"{name}N", depth - 1) | pair(name)
    arrays = inner.flatmap(
        lambda item: st.integers(0, 5).map(lambda n: ({"type": "array", "items": item[0]}, [item[1]] * n))
    )
    maps = st.tuples(inner, st.lists(TEXT, max_size=4)).map(
        lambda drawn: ({"type": "map", "values": drawn[0][0]}, dict.fromkeys(drawn[1], drawn[0][1]))
    )
    unions = st.tuples(inner, st.booleans()).map(
        lambda drawn: (["null", drawn[0][0]], drawn[0][1] if drawn[1] else None)
    )
    records = inner.map(
        lambda item: (
            {"type": "record", "name": f"{name}R", "fields": [{"name": "a", "type": item[0]}]},
            {"a": item[1]},
        )
    )
    return arrays | maps | unions.filter(lambda each: not isinstance(each[0][1], list)) | records | inner


PAYLOADS = st.lists(st.integers(0, 1), min_size=1, max_size=5).flatmap(
    lambda depths: st.tuples(*(nested(f"T{place}", depth) for place, depth in enumerate(depths)))
)


def schema_of(pairs: tuple[tuple[Any, Any], ...]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A record of them: the schema as parsed, its named types, the values."""
    fields = [{"name": f"f{place}", "type": schema} for place, (schema, _) in enumerate(pairs)]
    named: dict[str, Any] = {}
    parsed = parse_schema({"type": "record", "name": "Payload", "fields": fields}, named)
    return parsed, named, {f"f{place}": value for place, (_, value) in enumerate(pairs)}


@given(PAYLOADS)
def test_what_a_general_encoder_writes_is_read_as_a_general_decoder_reads_it(pairs: Any) -> None:
    parsed, named, values = schema_of(pairs)
    buffer = BytesIO()
    schemaless_writer(buffer, parsed, values)
    cursor = Cursor(b"front" + buffer.getvalue(), 5)
    assert decoder(parsed, named).read(cursor) == schemaless_reader(BytesIO(buffer.getvalue()), parsed, None)
    assert cursor.at == len(cursor.data)


@given(PAYLOADS, st.data())
def test_bytes_that_end_too_early_are_never_read_to_the_end(pairs: Any, data: st.DataObject) -> None:
    parsed, named, values = schema_of(pairs)
    buffer = BytesIO()
    schemaless_writer(buffer, parsed, values)
    whole = buffer.getvalue()
    cut = data.draw(st.integers(0, max(0, len(whole) - 1)))
    if cut < len(whole):
        with pytest.raises((EOFError, IndexError)):
            decoder(parsed, named).read(Cursor(whole[:cut], 0))


def test_blocks_that_tell_their_size_are_read() -> None:
    """Other writers put the size of a block behind a count below zero, and write several blocks."""
    in_blocks = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"  # two items in two bytes, then one, then the end
    cursor = Cursor(in_blocks, 0)
    assert decoder({"type": "array", "items": "long"}, {}).read(cursor) == [1, 2, 3]
    assert cursor.at == len(in_blocks)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        pytest.param("long", b"\xff" * 9 + b"\x7f", id="a number of more than 64 bits"),
        pytest.param("long", b"\x80" * 4000 + b"\x01", id="a number without an end"),
        pytest.param("string", b"\x01", id="a length below zero"),
        pytest.param("string", b"\x02\xff", id="text that is no UTF-8"),
        pytest.param(["null", "string"], b"\x04", id="a branch beyond the last"),
        pytest.param(["null", "string"], b"\x01", id="a branch before the first"),
        pytest.param(
            {"type": "enum", "name": "E", "symbols": ["a"]}, b"\x02", id="a symbol that there is not"
        ),
        pytest.param(DECIMAL, b"\x0a" + b"\x7f" * 5, id="a decimal of too many digits"),
        pytest.param(
            {"type": "array", "items": "long"}, b"\xfe\xff\xff\xff\x0f\x02", id="items that never come"
        ),
        pytest.param(
            {"type": "int", "logicalType": "date"}, b"\xff\xff\xff\xff\x0f", id="a day before the first"
        ),
    ],
)
def test_bad_bytes_are_refused(schema: Any, data: bytes) -> None:
    with pytest.raises((ValueError, EOFError, IndexError, OverflowError)):
        decoder(parse_schema(schema), {}).read(Cursor(data, 0))
