from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.adapters.avro import SchemaCatalog, packaged_schemas_dir
from pipeline.adapters.avro import catalog as catalog_module
from pipeline.adapters.avro.parsing import parse
from pipeline.errors import SchemaError
from tests.unit.avro_examples import SCHEMAS, catalog_of, record


@pytest.mark.parametrize("job_type", ["email.send", "invoice.render"])
def test_the_example_job_types_have_two_versions_in_ascending_order(job_type: str) -> None:
    versions = SchemaCatalog(SCHEMAS).versions(job_type)
    assert [version.version for version in versions] == [1, 2]
    assert {version.fullname.rpartition(".")[0] for version in versions} == {"pipeline.examples"}


# From Java's avro-tools 1.12.0: fingerprint --fingerprint CRC-64-AVRO
@pytest.mark.parametrize(
    ("job_type", "version", "fingerprint"),
    [
        ("email.send", 1, "2ad06f6107184388"),
        ("email.send", 2, "ad5093742b1517bc"),
        ("invoice.render", 1, "910dbf6c2f7e4fa9"),
        ("invoice.render", 2, "b974aa43d7d5feec"),
    ],
)
def test_fingerprints_are_those_of_java_so_released_schemas_did_not_change(
    job_type: str, version: int, fingerprint: str
) -> None:
    found = SchemaCatalog(SCHEMAS).versions(job_type)[version - 1]
    assert found.fingerprint.hex() == fingerprint


def test_a_fingerprint_of_logical_named_and_nested_types_is_that_of_java() -> None:
    schema = {
        "type": "record", "name": "Rich", "namespace": "a.b", "doc": "d", "aliases": ["Old"],
        "fields": [
            {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "e", "type": {"type": "enum", "name": "E", "namespace": "other", "symbols": ["A", "B"],
                                   "default": "A"}},
            {"name": "e2", "type": ["null", "other.E"], "default": None},
            {"name": "n", "type": {"type": "record", "name": "Inner", "fields": [
                {"name": "x", "type": "double", "default": 1.5},
                {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "long"}}}]}},
            {"name": "n2", "type": ["null", "Inner"]},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 4}},
            {"name": "plain", "type": {"type": "string"}},
        ],
    }  # fmt: skip
    assert parse(json.dumps(schema), "test").fingerprint.hex() == "27fc9d0d9f77b0a6"


def test_a_job_type_without_schemas_is_an_error_that_names_the_file_expected(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"'gone\.job' has no schema: expected .*gone\.job.v1\.avsc"):
        SchemaCatalog(tmp_path).versions("gone.job")


@pytest.mark.parametrize("job_type", ["../secrets", "a/b", "..", "", "/etc", "a..b", "a\x00b"])
def test_a_job_type_from_a_header_cannot_lead_out_of_the_directory(tmp_path: Path, job_type: str) -> None:
    with pytest.raises(SchemaError, match="allowed are letters"):
        SchemaCatalog(tmp_path / "schemas").versions(job_type)


@pytest.mark.parametrize("name", ["v01.avsc", "V1.avsc", "v1 (copy).avsc", "latest.avsc", "v0.avsc"])
def test_a_misnamed_schema_file_is_refused_rather_than_overlooked(tmp_path: Path, name: str) -> None:
    catalog = catalog_of(tmp_path, record({"a": "int"}))
    (tmp_path / "some.job" / name).write_text("{}")
    with pytest.raises(SchemaError, match=r"schema files are named v1\.avsc"):
        catalog.versions("some.job")


def test_a_released_version_that_vanished_is_named(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, *[record({"a": "int"})] * 3)
    (tmp_path / "some.job" / "v2.avsc").unlink()
    with pytest.raises(SchemaError, match=r"v2\.avsc is missing"):
        catalog.versions("some.job")


def test_versions_are_sorted_by_number_and_not_by_name(tmp_path: Path) -> None:
    schemas = [record({f"f{number}": "int"}) for number in range(1, 12)]
    catalog = catalog_of(tmp_path, *schemas)
    assert [version.version for version in catalog.versions("some.job")] == list(range(1, 12))
    assert catalog.latest("some.job").version == 11


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"string"',
        "17",
        "null",
        '{"type": "map", "values": "int"}',
        '{"type": "record", "name": "A"}X',
        '{"type": "record", "name": "A", "fields": [{"name": "x"}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "Nowhere"}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", "int"]}, 5]}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_record_schema_is_refused_by_name(tmp_path: Path, text: str) -> None:
    catalog = catalog_of(tmp_path, record({"a": "int"}))
    (tmp_path / "some.job" / "v1.avsc").write_text(text)
    with pytest.raises(SchemaError, match=r"v1\.avsc: not a valid Avro schema"):
        catalog.versions("some.job")


def test_a_file_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, record({"a": "int"}))
    (tmp_path / "some.job" / "v1.avsc").write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match=r"v1\.avsc: cannot be read"):
        catalog.versions("some.job")


def test_a_renamed_record_is_refused_because_old_bytes_could_not_be_read(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, record({"a": "int"}), record({"a": "int"}, name="Renamed"))
    with pytest.raises(SchemaError, match=r"v2\.avsc: the record is named test\.Renamed, but test\.Payload"):
        catalog.versions("some.job")


def test_files_are_read_once(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, record({"a": "int"}))
    first = catalog.versions("some.job")
    (tmp_path / "some.job" / "v1.avsc").unlink()
    assert catalog.versions("some.job") == first
    assert catalog.loaded() == first


@pytest.mark.skipif("compiled" in catalog_module.__file__, reason="the package is not that of the checkout")
def test_in_a_checkout_the_packaged_schemas_are_those_beside_the_package() -> None:
    assert packaged_schemas_dir() == SCHEMAS


def test_in_a_wheel_the_packaged_schemas_lie_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def directory() -> Path | None:
        return packaged_schemas_dir()

    module = tmp_path / "pipeline" / "adapters" / "avro" / "catalog.py"
    monkeypatch.setattr(catalog_module, "__file__", str(module))
    (tmp_path / "schemas").mkdir()
    assert directory() is None, "a folder of somebody else in site-packages"
    (tmp_path / "pipeline" / "_schemas").mkdir(parents=True)
    assert directory() == tmp_path / "pipeline" / "_schemas"


NODE: Any = record({"next": ["null", "test.Payload"]})
CYCLE: Any = record({"a": {"type": "record", "name": "A", "fields": [{"name": "b", "type": ["null", {
    "type": "record", "name": "B", "fields": [{"name": "a", "type": {"type": "array", "items": "A"}}]}]}]}})  # fmt: skip
EMPTY: Any = {"type": "record", "name": "Empty", "fields": []}
CHAIN: Any = {f"f{n}": {"type": "record", "name": f"C{n}", "fields": [
    {"name": "x", "type": f"C{n - 1}" if n else "int"}]} for n in range(80)}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (NODE, r"field 'next': test\.Payload contains itself"),
        (CYCLE, r"field 'a\.b\.a\[\]': test\.A contains itself"),
        (record({"a": {"type": "array", "items": "null"}}), r"field 'a\[\]': null is allowed only inside"),
        (record({"a": {"type": "map", "values": {"type": "null"}}}), r"field 'a\{\}': null is allowed only"),
        (record({"a": "null"}), "field 'a': null is allowed only inside a union"),
        (record({"a": EMPTY}), r"field 'a': test\.Empty is empty"),
        (record({"a": {"type": "array", "items": EMPTY}}), r"field 'a\[\]': test\.Empty is empty"),
        (record({"a": {"type": "fixed", "name": "F", "size": 0}}), r"field 'a': test\.F is empty"),
        (record({"a": {"type": "error", "name": "Er", "fields": []}}), "the type 'error' has no place"),
        (record(CHAIN), "nests 82 types deep; 64 is the limit"),
    ],
)
def test_a_schema_that_a_few_bytes_could_crash_or_stall_is_refused(
    tmp_path: Path, schema: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SchemaError, match=complaint):
        catalog_of(tmp_path, schema).versions("some.job")


def test_a_payload_without_fields_and_a_type_used_twice_are_fine(tmp_path: Path) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    twice = record({"a": inner, "b": "Inner", "c": ["null", {"type": "array", "items": "Inner"}]})
    assert catalog_of(tmp_path, record({}), twice).latest("some.job").version == 2
