"""Upcasters: what old payloads say in terms of the newest version, where Avro's own rules cannot tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline import Pipeline
from pipeline.adapters.avro import AvroCodec
from pipeline.config import Settings
from pipeline.core.job_type import Upcaster
from pipeline.errors import PayloadError, SchemaError
from tests.unit.avro_examples import assert_stands_alone, catalog_of, framed, record

JOB = "some.job"
MOMENT = {"type": "long", "logicalType": "timestamp-micros"}


class Person(BaseModel):
    first: str
    last: str
    born: datetime
    title: str


# v1 has one name, v2 has two, v3 has a title: each field can come and go, but what is in it, Avro cannot split.
VERSIONS = (
    record({"name": ("string", ""), "born": MOMENT}),
    record({"first": ("string", ""), "last": ("string", ""), "born": MOMENT}),
    record({"first": ("string", ""), "last": ("string", ""), "born": MOMENT, "title": ("string", "")}),
)
BORN = datetime(1815, 12, 10, tzinfo=UTC)


def split(values: dict[str, Any]) -> Mapping[str, Any]:
    first, _, last = values.pop("name").partition(" ")
    return {**values, "first": first, "last": last}


def entitle(values: dict[str, Any]) -> Mapping[str, Any]:
    return {**values, "title": "Lady" if values["first"] == "Ada" else ""}


def codec_of(folder: Path, upcasters: dict[int, Upcaster]) -> AvroCodec:
    codec = AvroCodec(catalog_of(folder, *VERSIONS))
    codec.register(JOB, Person, upcasters)
    return codec


def old(folder: Path, version: int, values: dict[str, Any]) -> bytes:
    return framed(catalog_of(folder, *VERSIONS).versions(JOB)[version - 1], values)


def test_an_old_payload_goes_through_every_upcaster_from_its_version_on(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, {1: split, 2: entitle})
    first = old(tmp_path, 1, {"name": "Ada Lovelace", "born": BORN})
    assert codec.decode(JOB, first) == Person(first="Ada", last="Lovelace", born=BORN, title="Lady")
    second = old(tmp_path, 2, {"first": "Ada", "last": "L", "born": BORN})
    assert codec.decode(JOB, second) == Person(first="Ada", last="L", born=BORN, title="Lady")


def test_where_there_is_no_upcaster_avro_resolves(tmp_path: Path) -> None:
    only_first = codec_of(tmp_path, {1: split})
    first = old(tmp_path, 1, {"name": "Ada Lovelace", "born": BORN})
    assert only_first.decode(JOB, first) == Person(first="Ada", last="Lovelace", born=BORN, title="")
    only_second = codec_of(tmp_path, {2: entitle})
    assert only_second.decode(JOB, first) == Person(first="", last="", born=BORN, title="")


def test_the_newest_version_and_newer_ones_meet_no_upcaster(tmp_path: Path) -> None:
    def never(_: dict[str, Any]) -> Mapping[str, Any]:
        raise AssertionError("not to be called")

    newer = record({"first": ("string", ""), "last": ("string", ""), "born": MOMENT, "title": ("string", ""), "more": ("int", 0)})  # fmt: skip
    text = json.dumps(newer)
    codec = AvroCodec(catalog_of(tmp_path, *VERSIONS), lambda _: text)
    codec.register(JOB, Person, {1: never, 2: never})
    person = Person(first="Bo", last="D", born=BORN, title="Mx")
    assert codec.decode(JOB, codec.encode(JOB, person)) == person
    version = catalog_of(tmp_path / "newer", newer).latest(JOB)
    assert codec.decode(JOB, framed(version, {**person.model_dump(), "more": 7})) == person


@pytest.mark.parametrize(
    "broken",
    [
        lambda _: 1 / 0,
        lambda _: None,
        lambda values: {**values, "first": 5, "last": ""},
        lambda values: {**values, "first": "Ada", "last": "L", "surplus": 1},
        lambda values: {"first": "Ada", "last": values["name"]},
    ],
    ids=["raises", "gives nothing", "wrong type", "too much", "too little"],
)
def test_an_upcaster_that_fails_makes_a_payload_error_that_names_the_version_and_no_value(
    tmp_path: Path, broken: Upcaster
) -> None:
    codec = codec_of(tmp_path, {1: broken})
    with pytest.raises(
        PayloadError, match=r"some\.job v2: the upcaster from v1 raised \w+, or gave values"
    ) as caught:
        codec.decode(JOB, old(tmp_path, 1, {"name": "secret-value", "born": BORN}))
    assert "secret" not in str(caught.value)
    assert_stands_alone(caught.value)


@pytest.mark.parametrize("version", [0, 3, 4])
def test_an_upcaster_from_a_version_that_no_payload_can_have_is_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(SchemaError, match=rf"upcaster from v{version}; allowed: from one of \[1, 2\]"):
        codec_of(tmp_path, {version: entitle})


def test_an_upcaster_between_versions_that_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    documented = {**VERSIONS[0], "doc": "Now with words."}
    codec = AvroCodec(catalog_of(tmp_path, VERSIONS[0], documented, *VERSIONS[1:]))
    with pytest.raises(SchemaError, match=r"upcaster from v1; allowed: from one of \[2, 3\]"):
        codec.register(JOB, Person, {1: split})
    codec.register(JOB, Person, {2: split})


def test_an_application_declares_its_upcasters_with_the_job_type(tmp_path: Path) -> None:
    app = Pipeline(Settings(schemas_dir=tmp_path))
    app.job_type(JOB, Person, upcasters={1: split})
    first = old(tmp_path, 1, {"name": "Ada Lovelace", "born": BORN})
    decoded = app.codec().decode(JOB, first)
    assert isinstance(decoded, Person)
    assert decoded.last == "Lovelace"
