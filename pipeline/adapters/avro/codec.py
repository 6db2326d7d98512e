"""Payload models to bytes and back: what a publisher writes and a worker reads.

What fastavro and validators raise quotes the payload. So the errors here do without its message, and are raised once it is out of
the way: "from None" would only hide it, and native code knows no "from".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from fastavro import schemaless_writer
from pydantic import BaseModel, TypeAdapter, ValidationError

from pipeline.adapters.avro.catalog import SchemaCatalog, SchemaVersion
from pipeline.adapters.avro.framing import FRAME_SIZES, HEADER_SIZE, frame_of, header_of, registry_prefix
from pipeline.adapters.avro.logical import disagreement, writing_form
from pipeline.adapters.avro.matching import match_model
from pipeline.adapters.avro.plain import plain
from pipeline.adapters.avro.preparing import Prepare, Unwritable
from pipeline.adapters.avro.reading import Reader, Upcasting, read
from pipeline.adapters.avro.writers import WriterSchemas
from pipeline.core.job_type import Upcaster
from pipeline.core.writer_schemas import FindWriterSchema, WriterRef, WrittenSchema
from pipeline.errors import InvalidJob, PayloadError, SchemaError, UnknownJobType

__all__ = ["AvroCodec"]


@dataclass(frozen=True)
class _Binding:
    """A registered job type. `readers` are found by the bytes a payload starts with, and grow with use."""

    model: type[BaseModel]
    newest: SchemaVersion
    header: bytes
    writing: dict[str, Any]
    prepare: Prepare
    validate: Callable[..., BaseModel]
    upcasting: Upcasting
    readers: dict[bytes, Reader]


class AvroCodec:
    """The `Codec` of payloads in Avro. Safe to call from several threads.

    The newest schema of the catalog is what is written; older versions are read as the newest. A payload of
    an unknown version is decoded with the text that `find_schema` gives for its name; what that raises passes
    through. A model's own serializers are not used: Avro gets its fields.
    """

    def __init__(self, catalog: SchemaCatalog, find_schema: FindWriterSchema | None = None) -> None:
        self._catalog = catalog
        self._writers = WriterSchemas(catalog, find_schema)
        self._bindings: dict[str, _Binding] = {}

    def register(
        self, job_type: str, model: type[BaseModel], upcasters: Mapping[int, Upcaster] | None = None
    ) -> None:
        """Bind a job type to its payload model. Raises `SchemaError` when model and newest schema differ."""
        newest = self._catalog.latest(job_type)
        for version in self._catalog.versions(job_type):
            if (problem := disagreement(version, newest)) is not None:
                raise SchemaError(f"{version.path} and {newest.path}: {problem}")
        writers = self._writers.packaged(job_type)
        upcasting = Upcasting(list(writers.values()), upcasters or {})
        self._bindings[job_type] = _Binding(
            model=model,
            newest=newest,
            header=header_of(newest.fingerprint),
            writing=writing_form(newest),
            prepare=match_model(model, newest),
            validate=TypeAdapter(model).validator.validate_python,
            upcasting=upcasting,
            readers={
                header_of(fingerprint): upcasting.reader(writer, start=HEADER_SIZE)
                for fingerprint, writer in writers.items()
            },
        )

    def written(self, job_type: str) -> WrittenSchema:
        """The schema that payloads of this type are written with."""
        newest = self._binding(job_type).newest
        return WrittenSchema(job_type, newest.version, newest.fingerprint, newest.fullname, newest.text)

    def write_registry_id(self, job_type: str, schema_id: int, registered: str) -> None:
        """From now on write the prefix of a registry, where the schema has that id and the text `registered`.

        Raises `SchemaError` when that text is not the schema that is written here.
        """
        binding = self._binding(job_type)
        ref = WriterRef("id", schema_id.to_bytes(4, "big"))
        mine = self._writers.packaged(job_type)[binding.newest.fingerprint]
        if self._writers.known(job_type, ref, registered) is not mine:
            raise SchemaError(f"{ref} is not {binding.newest.path}, though the registry says so")
        header = registry_prefix(schema_id)
        binding.readers[header] = binding.upcasting.reader(mine, start=len(header))
        self._bindings[job_type] = replace(binding, header=header)

    def encode(self, job_type: str, payload: BaseModel) -> bytes:
        """The payload as the newest version. Raises `InvalidJob` that names the field which cannot be written."""
        binding = self._binding(job_type)
        if not isinstance(payload, binding.model):
            raise InvalidJob(
                f"{job_type}: the payload is {type(payload).__name__}, not {binding.model.__name__}"
            )
        buffer = BytesIO()
        buffer.write(binding.header)
        try:
            values = binding.prepare(payload)
        except Unwritable as error:
            problem = f"field {error.path!r} {error}"
        else:
            try:
                schemaless_writer(buffer, binding.writing, values)
            except Exception as error:  # noqa: BLE001 - fastavro raises anything
                problem = _unwritten(binding, values, error)
            else:
                return buffer.getvalue()
        raise InvalidJob(f"{job_type}: {problem}")

    def decode(self, job_type: str, data: bytes, schema_id: bytes = b"") -> BaseModel:
        """The payload as the registered model, whatever version it was written as.

        `schema_id` is the value of the header `__value_schema_id`, for payloads without a frame. Raises
        `UnknownWriterSchema` when the schema cannot be found, `PayloadError` for any other bad input.
        """
        binding = self._binding(job_type)
        name = b"header " + schema_id if schema_id else data[: FRAME_SIZES.get(data[:1], HEADER_SIZE)]
        reader = binding.readers.get(name)
        if reader is None:
            reader = binding.readers[name] = self._new_reader(job_type, binding, data, schema_id)
        values = read(job_type, data, reader)
        try:
            # Avro has the types right already; lax, so that enum symbols become members in strict models, too.
            return binding.validate(values, strict=False)
        except Exception as error:  # noqa: BLE001 - validators of users raise anything
            problem = _refusal(error)
        label = reader.writer.parsed.label
        raise PayloadError(f"{job_type}: {binding.model.__name__} refuses a payload of {label}: {problem}")

    def describe(self, job_type: str, data: bytes, schema_id: bytes = b"") -> dict[str, object]:
        """Schema, fingerprint and payload as JSON values, as its writer saw it. Raises like `decode`.

        The job type need not be registered, only to have schemas.
        """
        self._catalog.versions(
            job_type
        )  # what is wrong with the schemas comes before what is wrong with the bytes
        with _named(job_type):
            frame = frame_of(data, schema_id)
            writer = self._writers.find(job_type, frame.ref)
        return {
            "schema": writer.parsed.label,
            "fingerprint": writer.parsed.fingerprint.hex(),
            "payload": plain(read(job_type, data, Reader(writer, None, frame.start))),
        }

    def label(self, job_type: str, ref: WriterRef) -> str:
        """The name of the schema that payloads refer to by `ref`. Raises like `describe`."""
        self._catalog.versions(job_type)
        with _named(job_type):
            return self._writers.find(job_type, ref).parsed.label

    def _binding(self, job_type: str) -> _Binding:
        binding = self._bindings.get(job_type)
        if binding is None:
            raise UnknownJobType(
                f"job type {job_type!r} is not registered; known: {', '.join(self._bindings) or 'none'}"
            )
        return binding

    def _new_reader(self, job_type: str, binding: _Binding, data: bytes, schema_id: bytes) -> Reader:
        with _named(job_type):
            frame = frame_of(data, schema_id)
            writer = self._writers.find(job_type, frame.ref)
        if (problem := disagreement(writer.parsed, binding.newest)) is not None:
            raise PayloadError(f"{job_type}: written as {writer.parsed.label}: {problem}")
        return binding.upcasting.reader(writer, start=frame.start)


@contextmanager
def _named(job_type: str) -> Iterator[None]:
    """Put the job type in front of what is wrong."""
    try:
        yield
    except PayloadError as error:
        raise type(error)(f"{job_type}: {error}") from error


def _unwritten(binding: _Binding, values: Any, error: Exception) -> str:
    """Why fastavro did not write the values."""
    reason = "text with a lone surrogate" if isinstance(error, UnicodeEncodeError) else type(error).__name__
    field = _culprit(binding, values)
    return f"field {field!r} of {binding.model.__name__} cannot be written as Avro: {reason}"


def _culprit(binding: _Binding, values: Any) -> str:
    """The field that fails when it is written alone."""
    schema = binding.writing
    for field in schema["fields"]:
        try:
            schemaless_writer(BytesIO(), {**schema, "fields": [field]}, values)
        except Exception:  # noqa: BLE001 - whatever fails names the field
            return str(field["name"])
    return "?"


def _refusal(error: Exception) -> str:
    """Why a model did not take the values. Only the field: deeper steps may be keys of a map, which are payload."""
    if not isinstance(error, ValidationError):
        return f"its validator raised {type(error).__name__}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = f"field {first['loc'][0]!r}" if first["loc"] else "as a whole"
    return f"{place}: {first['type']} ({error.error_count()} in all)"
