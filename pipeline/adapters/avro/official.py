"""The judgement of Apache Avro's own Python library: does it take the schema, and can one read what the other writes?

Two parsers, because each misses faults that the other finds. The only module that imports it: slow to import, and needed by
`pipeline schemas` alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.schema import Schema, parse

__all__ = ["Obstacle", "obstacles", "parse_problem"]


class Obstacle(NamedTuple):
    """Why a reader cannot read what a writer writes: Avro's name for it, its text, and the field in the reader."""

    kind: str
    message: str
    place: str


def parse_problem(text: str) -> str | None:
    """What Apache Avro finds wrong with a schema; None when nothing is."""
    try:
        _parse(text)
    except (AvroException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def obstacles(reader: str, writer: str) -> list[Obstacle]:
    """What keeps payloads of the writer from being read as the reader, both given as texts that parse."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(_parse(reader), _parse(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    document = json.loads(reader)
    places = sorted({_place(document, location) for location in result.locations})
    messages = "; ".join(sorted(message for message in result.messages if message))
    kinds = sorted({kind.value for kind in result.incompatibilities})
    return [Obstacle(" and ".join(kinds), messages, ", ".join(place for place in places if place))]


def _parse(text: str) -> Schema:
    with warnings.catch_warnings():
        # It warns of logical types that it does not know; ours are judged elsewhere.
        warnings.simplefilter("ignore")
        return parse(text)


def _place(document: Any, location: str) -> str:
    """`/fields/12/type` as the name of that field."""
    return ".".join(_names(document, [step for step in location.split("/") if step]))


def _names(node: Any, steps: list[str]) -> Iterator[str]:
    for number, step in enumerate(steps):
        if isinstance(node, list) and step.isdigit() and int(step) < len(node):
            node = node[int(step)]
            if number and steps[number - 1] == "fields" and isinstance(node, dict):
                yield str(node.get("name", step))
        elif isinstance(node, dict) and step in node:
            node = node[step]
