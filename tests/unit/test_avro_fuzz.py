"""Anything at all as payload, header or foreign schema: our errors or a valid model come out, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import tempfile
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.core.writer_schemas import WriterRef
from pipeline.demo.jobs import SendEmail
from pipeline.errors import PayloadError
from tests.unit.avro_examples import SCHEMAS, catalog_of, example_codec, framed, record

JOB = "some.job"
# Generous, as the machine may be busy; what this must catch takes minutes.
BOUNDED = settings(max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.too_slow])
V1 = (SCHEMAS / "email.send" / "v1.avsc").read_text()


@cache
def registry_codec() -> AvroCodec:
    """Every id and GUID is that of the first version; fingerprints are not found."""
    codec = AvroCodec(SchemaCatalog(SCHEMAS), lambda ref: None if ref.kind == "fingerprint" else V1)
    codec.register("email.send", SendEmail)
    return codec


def attempt(codec: AvroCodec, job_type: str, data: bytes, header: bytes = b"") -> BaseModel | None:
    with contextlib.suppress(PayloadError):
        codec.describe(job_type, data, header)
    try:
        return codec.decode(job_type, data, header)
    except PayloadError:
        return None


FRAMES = st.sampled_from(
    [b"", b"\xc3", b"\xc3\x01", b"\x00", b"\x00\x00\x00\x00\x07", b"\x01", b"\x01" * 17, b"Obj\x01", b"{"]
)
HEADERS = (
    st.just(b"") | st.binary(max_size=20) | st.binary(min_size=4, max_size=4).map(lambda raw: b"\x00" + raw)
)


@BOUNDED
@given(frame=FRAMES, data=st.binary(max_size=200), header=HEADERS)
def test_any_frame_any_bytes_and_any_header_are_refused_or_make_a_valid_model(
    frame: bytes, data: bytes, header: bytes
) -> None:
    decoded = attempt(registry_codec(), "email.send", frame + data, header)
    assert decoded is None or isinstance(decoded, SendEmail)


@BOUNDED
@given(cut=st.integers(0, 120), junk=st.binary(max_size=40), header=HEADERS)
def test_a_sound_payload_with_a_damaged_end_is_refused_or_makes_a_valid_model(
    cut: int, junk: bytes, header: bytes
) -> None:
    email = SendEmail(to="ada@example.org", subject="Hi", body="Hello" * 10, cc=["a", "b"])
    data = example_codec_bytes(email)
    attempt(registry_codec(), "email.send", data[:cut] + junk, header)


@cache
def shared_codec() -> AvroCodec:
    return example_codec()


def example_codec_bytes(email: SendEmail) -> bytes:
    return shared_codec().encode("email.send", email)


# --- foreign schemas: what a topic or a registry may hand over


class Mine(BaseModel):
    a: int


NAMES = st.sampled_from(["A", "B", "test.Payload", "Payload", "a", ""])
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        "null",
        "int",
        "long",
        "string",
        "bytes",
        "boolean",
        "double",
        "float",
        "A",
        "test.Payload",
        "",
        5,
        None,
        True,
    ]
)


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "c"]), "type": children}, optional={"default": LEAVES}
    )
    return st.one_of(
        st.lists(children, max_size=3),
        st.fixed_dictionaries({"type": st.just("array"), "items": children}),
        st.fixed_dictionaries({"type": st.just("map"), "values": children}),
        st.fixed_dictionaries(
            {"type": st.just("record"), "name": NAMES, "fields": st.lists(field, max_size=3)}
        ),
        st.fixed_dictionaries(
            {"type": st.just("enum"), "name": NAMES, "symbols": st.lists(NAMES, max_size=3)}
        ),
        st.fixed_dictionaries({"type": st.just("fixed"), "name": NAMES, "size": st.integers(-5, 2**40)}),
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["bytes", "int", "long", "string"]),
                "logicalType": st.sampled_from(["decimal", "uuid", "date", "timestamp-micros", "odd", ""]),
            },
            optional={"precision": st.integers(-5, 10**9), "scale": st.integers(-5, 10**9)},
        ),
    )


SCHEMA = st.recursive(LEAVES, nested, max_leaves=12)


@cache
def my_folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    catalog_of(folder, record({"a": "int"}))
    return folder


@BOUNDED
@given(extra=st.lists(SCHEMA, max_size=3), data=st.binary(max_size=60))
@example(extra=[{"type": "array", "items": "null"}], data=b"\x02\xfe\xff\xff\xff\x0f\x00")
@example(extra=[{"type": "fixed", "name": "F", "size": 2**40}], data=b"\x02\x00")
@example(
    extra=[{"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}],
    data=b"\x02\xfe\xff\xff\xff\x0f",
)
@example(extra=[{"type": "array", "items": "double"}], data=b"\x02\xfe\xff\xff\xff\x0f")
@example(extra=[{"type": "array", "items": "boolean"}], data=b"\x02\xfe\xff\xff\xff\x0f")
@example(
    extra=[{"type": "array", "items": {"type": "fixed", "name": "F", "size": 16}}],
    data=b"\x02\xfe\xff\xff\xff\x0f",
)
def test_any_foreign_schema_is_refused_or_decodes_within_bounds(extra: list[Any], data: bytes) -> None:
    fields = [{"name": "a", "type": "int"}]
    fields += [{"name": f"x{number}", "type": type_} for number, type_ in enumerate(extra)]
    text = json.dumps({"type": "record", "name": "Payload", "namespace": "test", "fields": fields})
    codec = AvroCodec(SchemaCatalog(my_folder()), lambda _: text)
    codec.register(JOB, Mine)
    decoded = attempt(codec, JOB, b"\x00\x00\x00\x00\x01" + data)
    assert decoded is None or isinstance(decoded, Mine)


@BOUNDED
@given(text=st.text(max_size=100) | SCHEMA.map(json.dumps), data=st.binary(max_size=20))
def test_any_text_in_place_of_a_schema_is_refused(text: str, data: bytes) -> None:
    codec = AvroCodec(SchemaCatalog(my_folder()), lambda _: text)
    codec.register(JOB, Mine)
    attempt(codec, JOB, b"\x00\x00\x00\x00\x01" + data)


# --- memory


@pytest.mark.parametrize(
    ("name", "type_", "body"),
    [
        ("a list that says it has a billion items", {"type": "array", "items": "int"}, b"\x80\xa8\xd6\xb9\x07" + b"\x02" * 50_000),
        ("a map that says so", {"type": "map", "values": "int"}, b"\x80\xa8\xd6\xb9\x07" + b"\x00\x02" * 25_000),
        ("text that says it has a terabyte", "string", b"\x80\x80\x80\x80\x80\x80\x01" + b"x" * 50_000),
        ("a list of lists", {"type": "array", "items": {"type": "array", "items": "int"}}, b"\x80\xa8\xd6\xb9\x07" + b"\x02\x02\x00" * 15_000),
        ("a fixed value of a terabyte", {"type": "fixed", "name": "F", "size": 2**40}, b"x" * 50_000),
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_a_payload_takes_memory_by_its_size_and_not_by_what_it_claims(
    tmp_path: Path, name: str, type_: Any, body: bytes
) -> None:
    version = catalog_of(tmp_path / "theirs", record({"a": "int", "big": type_})).latest(JOB)
    codec = AvroCodec(catalog_of(tmp_path / "mine", record({"a": "int"})), lambda _: version.text)
    codec.register(JOB, Mine)
    frame = framed(catalog_of(tmp_path / "mine", record({"a": "int"})).latest(JOB), {"a": 1})[10:]
    tracemalloc.start()
    try:
        for data in (b"\x00\x00\x00\x00\x01" + frame + body, b"\x00\x00\x00\x00\x01" + frame + body[:7]):
            assert attempt(codec, JOB, data) is None, name
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000


def test_a_reference_names_itself_for_people() -> None:
    assert str(WriterRef("fingerprint", b"\x01" * 8)) == "schema 0101010101010101"
    assert str(WriterRef("id", b"\x00\x00\x01\x2f")) == "registry schema 303"
    assert str(WriterRef("guid", b"\x02" * 16)) == f"registry schema {'02' * 16}"
