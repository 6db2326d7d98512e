"""The gate for changes of schemas: what passes, what does not, and under which rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from pipeline.adapters.avro.checking import check_folder
from pipeline.adapters.avro.lock import LOCK_NAME, locked, read_lock, write_lock
from pipeline.adapters.avro.models import check_model
from pipeline.adapters.avro.samples import sample_payloads
from pipeline.core.findings import ADVICE, Finding
from pipeline.demo.jobs import RenderInvoice, SendEmail, app
from pipeline.errors import SchemaError
from tests.unit.avro_examples import EVERYTHING, SCHEMAS, catalog_of, record

JOB = "some.job"
INT, STRING = "int", "string"
UUID_TYPE = {"type": "string", "logicalType": "uuid"}


def enum(*symbols: str, name: str = "E", **extra: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), "default": symbols[0], **extra}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(type_: str, name: str) -> dict[str, str]:
    return {"type": type_, "logicalType": name}


def inner(**fields: Any) -> dict[str, Any]:
    return {**record(fields, name="Inner"), "namespace": "test"}


def findings(folder: Path, *versions: Mapping[str, Any]) -> list[Finding]:
    catalog_of(folder, *(dict(version) for version in versions))
    return check_folder(folder).findings


def rules(folder: Path, *versions: Mapping[str, Any]) -> set[str]:
    return {found.rule for found in findings(folder, *versions)}


# --- evolutions: `None` passes in both directions


class Evolution(NamedTuple):
    name: str
    old: dict[str, Any]
    new: dict[str, Any]
    rule: str | None


A = {"a": STRING}
EVOLUTIONS = [
    Evolution("field with a default added", A, {**A, "b": (INT, 0)}, None),
    Evolution("field with a default removed", {**A, "b": (INT, 0)}, A, None),
    Evolution("optional field added", A, {**A, "b": (["null", STRING], None)}, None),
    Evolution("fields in another order", {**A, "b": INT}, {"b": INT, **A}, None),
    Evolution("default changed", {"a": (INT, 0)}, {"a": (INT, 1)}, None),
    Evolution("default added", {"a": INT}, {"a": (INT, 1)}, None),
    Evolution("array added", A, {**A, "b": ({"type": "array", "items": STRING}, [])}, None),
    Evolution("map added", A, {**A, "b": ({"type": "map", "values": "long"}, {})}, None),
    Evolution("record added", A, {**A, "b": (inner(x=(INT, 0)), {})}, None),
    Evolution("field added to a nested record", {"n": inner(x=INT)}, {"n": inner(x=INT, y=(INT, 0))}, None),
    Evolution("enum with a default gains a symbol", {"e": enum("O", "A")}, {"e": enum("O", "A", "B")}, None),
    Evolution("enum with a default loses a symbol", {"e": enum("O", "A", "B")}, {"e": enum("O", "A")}, None),
    Evolution("symbols in another order", {"e": enum("O", "A")}, {"e": enum("A", "O")}, None),
    Evolution("required field added", A, {**A, "b": INT}, "incompatible"),
    Evolution("required field removed", {**A, "b": INT}, A, "incompatible"),
    Evolution("field renamed", {"a": STRING}, {"b": STRING}, "incompatible"),
    Evolution("field renamed, both with defaults", {"a": (STRING, "")}, {"b": (STRING, "")}, None),
    Evolution("required field in a nested record", {"n": inner(x=INT)}, {"n": inner(x=INT, y=INT)}, "incompatible"),
    Evolution("int to long", {"a": INT}, {"a": "long"}, "incompatible"),
    Evolution("long to int", {"a": "long"}, {"a": INT}, "incompatible"),
    Evolution("int to string", {"a": INT}, {"a": STRING}, "incompatible"),
    Evolution("float to double", {"a": "float"}, {"a": "double"}, "incompatible"),
    Evolution("made optional", A, {"a": ["null", STRING]}, "incompatible"),
    Evolution("made required", {"a": ["null", STRING]}, A, "incompatible"),
    Evolution("another branch", {"a": ["null", STRING]}, {"a": ["null", STRING, INT]}, "incompatible"),
    Evolution("one to many", A, {"a": {"type": "array", "items": STRING}}, "incompatible"),
    Evolution("items of another type", {"a": {"type": "array", "items": INT}}, {"a": {"type": "array", "items": "long"}}, "incompatible"),
    Evolution("values of another type", {"a": {"type": "map", "values": INT}}, {"a": {"type": "map", "values": STRING}}, "incompatible"),
    Evolution("enum renamed", {"e": enum("O")}, {"e": enum("O", name="F")}, "incompatible"),
    Evolution("nested record renamed", {"n": inner(x=INT)}, {"n": {**inner(x=INT), "name": "Other"}}, "incompatible"),
    Evolution("string to enum", {"e": STRING}, {"e": enum("O", "A")}, "incompatible"),
    Evolution("bytes to string", {"a": "bytes"}, {"a": STRING}, "bytes-and-string"),
    Evolution("string to bytes in a list", {"a": {"type": "array", "items": STRING}}, {"a": {"type": "array", "items": "bytes"}}, "bytes-and-string"),
    Evolution("micros to millis", {"t": logical("long", "timestamp-micros")}, {"t": logical("long", "timestamp-millis")}, "logical-type-changed"),
    Evolution("logical type added", {"t": "long"}, {"t": logical("long", "timestamp-micros")}, "logical-type-changed"),
    Evolution("logical type dropped", {"u": UUID_TYPE}, {"u": STRING}, "logical-type-changed"),
    Evolution("unknown logical types", {"t": logical("long", "time-micros")}, {"t": logical("long", "local-timestamp-micros")}, "logical-type-changed"),
    Evolution("scale of a decimal", {"d": decimal(9, 2)}, {"d": decimal(9, 3)}, "logical-type-changed"),
    Evolution("precision of a decimal", {"d": decimal(9, 2)}, {"d": decimal(12, 2)}, "logical-type-changed"),
    Evolution("logical type inside an optional", {"t": ["null", logical("long", "timestamp-micros")]}, {"t": ["null", logical("long", "timestamp-millis")]}, "logical-type-changed"),
    Evolution("logical type in a nested record", {"n": inner(t=logical("int", "date"))}, {"n": inner(t=INT)}, "logical-type-changed"),
]  # fmt: skip


@pytest.mark.parametrize("case", EVOLUTIONS, ids=lambda case: case.name)
def test_an_evolution_is_judged_the_same_whichever_version_came_first(
    tmp_path: Path, case: Evolution
) -> None:
    expected = set() if case.rule is None else {case.rule}
    forth = rules(tmp_path / "forth", record(case.old), record(case.new))
    back = rules(tmp_path / "back", record(case.new), record(case.old))
    assert expected <= forth == back
    assert bool(forth) == bool(expected)


def test_a_pair_that_is_not_neighbouring_is_judged_too(tmp_path: Path) -> None:
    one, two, three = {**A, "b": (INT, 0)}, A, {**A, "b": (STRING, "")}
    found = [
        each
        for each in findings(tmp_path, record(one), record(two), record(three))
        if each.rule == "incompatible"
    ]
    assert {each.versions for each in found} == {"written as v1, read as v3", "written as v3, read as v1"}
    assert {each.place for each in found} == {"b"}


def test_a_finding_names_file_field_versions_rule_and_what_to_do(tmp_path: Path) -> None:
    new = record({**A, "n": (inner(x=INT), {"x": 1}), "region": STRING})
    (found,) = (each for each in findings(tmp_path, record(A), new) if each.rule == "incompatible")
    assert found.file == str(tmp_path / JOB / "v2.avsc")
    assert found.place == "region"
    assert found.versions == "written as v1, read as v2"
    assert "reader_field_missing_default_value" in found.problem
    assert "is a new job type, not a new version" in found.advice


def test_every_rule_has_advice() -> None:
    named = {rule for case in EVOLUTIONS if (rule := case.rule)} | set(ADVICE)
    assert all(ADVICE[rule] for rule in named)


# --- one version


@pytest.mark.parametrize(
    ("schema", "rule", "place"),
    [
        ({**record(A), "namespace": ""}, "no-namespace", ""),
        (record({"e": {"type": "enum", "name": "E", "symbols": ["A"]}}), "enum-without-default", "e"),
        (record({"l": {"type": "array", "items": inner(e={"type": "enum", "name": "E", "symbols": ["A"]})}}), "enum-without-default", "l[].e"),
        (record({"1x": STRING}), "bad-name", ""),
        (record({"n": inner(**{"y-z": STRING})}), "bad-name", "n"),
        (record({"a": (INT, "x")}), "bad-default", "a"),
        (record({"a": (INT, 2**40)}), "bad-default", "a"),
        (record({"a": (INT, True)}), "bad-default", "a"),
        (record({"a": ("long", 2**63)}), "bad-default", "a"),
        (record({"a": (STRING, None)}), "bad-default", "a"),
        (record({"a": ([STRING, "null"], None)}), "bad-default", "a"),
        (record({"a": (["null", STRING], "x")}), "bad-default", "a"),
        (record({"a": ("boolean", 0)}), "bad-default", "a"),
        (record({"a": ("double", "1")}), "bad-default", "a"),
        (record({"a": ("bytes", "\u0394")}), "bad-default", "a"),
        (record({"a": (UUID_TYPE, "no uuid")}), "bad-default", "a"),
        (record({"e": (enum("A", "B"), "C")}), "bad-default", "e"),
        (record({"l": ({"type": "array", "items": INT}, ["x"])}), "bad-default", "l"),
        (record({"m": ({"type": "map", "values": INT}, {"k": "x"})}), "bad-default", "m"),
        (record({"n": (inner(x=INT), {})}), "bad-default", "n"),
        (record({"n": inner(x=(INT, "x"))}), "bad-default", "n.x"),
    ],
)  # fmt: skip
def test_a_fault_of_one_version_is_found_at_its_place(
    tmp_path: Path, schema: dict[str, Any], rule: str, place: str
) -> None:
    found = [(each.rule, each.place) for each in findings(tmp_path, schema) if each.rule != "unreadable"]
    unreadable = any(each.rule == "unreadable" for each in check_folder(tmp_path).findings)
    assert unreadable or (rule, place) in found


@pytest.mark.parametrize(
    "schema",
    [
        record({"a": [STRING, STRING]}),  # fastavro takes it, Apache Avro does not
        record(A, name="1x"),  # likewise
        record({"a": {"type": "array", "items": "null"}}),  # a few bytes would become millions of items
        record({"a": "no.such"}),
        {"type": "string"},
    ],
)
def test_what_one_of_the_parsers_refuses_is_refused(tmp_path: Path, schema: dict[str, Any]) -> None:
    assert rules(tmp_path, schema) == {"unreadable"}


def test_a_gap_in_the_numbers_and_a_stray_file_are_found(tmp_path: Path) -> None:
    catalog_of(tmp_path, record(A), record(A), record(A))
    (tmp_path / JOB / "v2.avsc").unlink()
    (finding,) = check_folder(tmp_path).findings
    assert "v2.avsc is missing" in finding.problem
    (tmp_path / JOB / "v2.json").write_text("{}")
    (tmp_path / JOB / "latest.avsc").write_text("{}")
    assert "schema files are named v1.avsc" in check_folder(tmp_path).findings[0].problem


def test_two_job_types_with_one_record_name_are_found(tmp_path: Path) -> None:
    catalog_of(tmp_path, record(A), job_type="one")
    catalog_of(tmp_path, record(A), job_type="two")
    (finding,) = check_folder(tmp_path).findings
    assert (finding.rule, finding.problem) == (
        "shared-name",
        "the record test.Payload is that of job type one, too",
    )


def test_every_supported_type_passes(tmp_path: Path) -> None:
    whole = {**EVERYTHING, "colour": {**EVERYTHING["colour"], "default": "red"}}
    assert findings(tmp_path, record(whole)) == []


def test_samples_reach_the_extremes_and_are_the_same_every_time(tmp_path: Path) -> None:
    version = catalog_of(tmp_path, record(EVERYTHING)).latest(JOB)
    assert sample_payloads(version, 50) == sample_payloads(version, 50)
    assert len(set(sample_payloads(version, 50))) == 50
    small = catalog_of(tmp_path, record({"a": "long"}), job_type="small").latest("small")
    assert {bytes([255] * 9 + [1]), bytes([254] + [255] * 8 + [1]), b"\x00"} <= set(
        sample_payloads(small, 100)
    )


# --- the lock


def released(folder: Path, *versions: dict[str, Any]) -> Path:
    catalog = catalog_of(folder, *versions)
    write_lock(folder, {JOB: {each.version: locked(each) for each in catalog.versions(JOB)}})
    return folder


def test_what_was_released_is_left_in_peace_and_the_rest_is_told(tmp_path: Path) -> None:
    released(tmp_path, record(A))
    assert check_folder(tmp_path).findings == []
    catalog_of(tmp_path, record(A), record({**A, "b": (INT, 0)}))
    checked = check_folder(tmp_path)
    assert checked.findings == []
    assert [version.version for version in checked.unreleased()] == [2]


def test_a_released_version_that_changed_in_any_way_is_found(tmp_path: Path) -> None:
    released(tmp_path, record(A))
    path = tmp_path / JOB / "v1.avsc"
    path.write_text(path.read_text() + "\n")
    (finding,) = check_folder(tmp_path).findings
    assert (finding.rule, finding.file, finding.versions) == ("released-changed", str(path), "v1")


def test_line_ends_that_version_control_changes_are_no_change(tmp_path: Path) -> None:
    folder = tmp_path / JOB
    folder.mkdir()
    (folder / "v1.avsc").write_bytes(json.dumps(record(A), indent=1).encode())
    write_lock(tmp_path, {JOB: {1: locked(check_folder(tmp_path).versions[JOB][0])}})
    text = (folder / "v1.avsc").read_bytes()
    (folder / "v1.avsc").write_bytes(text.replace(b"\n", b"\r\n"))
    assert check_folder(tmp_path).findings == []


def test_a_released_version_that_vanished_is_found(tmp_path: Path) -> None:
    released(tmp_path, record(A), record({**A, "b": (INT, 0)}))
    (tmp_path / JOB / "v2.avsc").unlink()
    assert [each.rule for each in check_folder(tmp_path).findings] == ["released-vanished"]
    (tmp_path / JOB / "v1.avsc").unlink()
    (tmp_path / JOB).rmdir()
    assert [each.rule for each in check_folder(tmp_path).findings] == ["released-vanished"] * 2


def test_a_version_that_was_passed_over_is_found(tmp_path: Path) -> None:
    released(tmp_path, record(A), record({**A, "b": (INT, 0)}))
    lock = read_lock(tmp_path)
    del lock[JOB][1]
    write_lock(tmp_path, lock)
    (finding,) = check_folder(tmp_path).findings
    assert (finding.rule, finding.versions) == ("not-released", "v1")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"some.job": 5}', '{"some.job": {"v1": {}}}', '{"some.job": {"x": {}}}', "\xff"]
)
def test_a_damaged_lock_is_a_finding_and_never_an_empty_lock(tmp_path: Path, text: str) -> None:
    released(tmp_path, record(A))
    (tmp_path / LOCK_NAME).write_text(text, encoding="latin-1")
    assert "bad-lock" in {each.rule for each in check_folder(tmp_path).findings}
    with pytest.raises(SchemaError, match=r"lock\.json cannot be read"):
        read_lock(tmp_path)


# --- models


def test_a_model_that_says_the_same_passes() -> None:
    checked = check_folder(SCHEMAS)
    assert list(check_model(SendEmail, checked.versions["email.send"][-1])) == []
    assert list(check_model(RenderInvoice, checked.versions["invoice.render"][-1])) == []


def test_a_model_with_another_field_type_or_default_is_found(tmp_path: Path) -> None:
    newest = catalog_of(tmp_path, record({"a": STRING, "b": (INT, 3)})).latest(JOB)

    class Missing(BaseModel):
        a: str

    class Typed(BaseModel):
        a: int
        b: int

    class Defaulted(BaseModel):
        a: str
        b: int = 4

    class Required(BaseModel):
        a: str
        b: int

    assert "has no such field" in next(check_model(Missing, newest)).problem
    assert "field 'a' is string, but int" in next(check_model(Typed, newest)).problem
    (finding,) = check_model(Defaulted, newest)
    assert (finding.place, finding.problem) == ("b", "its default is 3 in the schema, but 4 in Defaulted")
    assert list(check_model(Required, newest)) == []


def test_a_default_that_only_the_model_can_express_is_found(tmp_path: Path) -> None:
    newest = catalog_of(tmp_path, record({"raw": (["null", "bytes"], None)})).latest(JOB)

    class Raw(BaseModel):
        raw: bytes | None = b"x"

    (finding,) = check_model(Raw, newest)
    assert "cannot be written in a schema" in finding.problem


# --- this repository


def test_the_schemas_of_this_repository_pass_and_are_released() -> None:
    checked = check_folder(SCHEMAS)
    assert checked.findings == []
    assert checked.unreleased() == []


def test_the_models_of_the_demo_say_what_the_newest_schemas_say() -> None:
    versions = check_folder(SCHEMAS).versions
    for job_type in app.registry.job_types():
        assert list(check_model(job_type.model, versions[job_type.name][-1])) == []
