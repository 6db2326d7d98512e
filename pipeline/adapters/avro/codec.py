"""Payload models to bytes and back: what a publisher writes and a worker reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NoReturn

from fastavro import schemaless_reader, schemaless_writer
from pydantic import BaseModel, ValidationError

from pipeline.adapters.avro.catalog import SchemaCatalog, SchemaVersion
from pipeline.adapters.avro.framing import HEADER_SIZE, header_of
from pipeline.adapters.avro.logical import disagreement
from pipeline.adapters.avro.matching import match_model
from pipeline.adapters.avro.plain import plain
from pipeline.adapters.avro.preparing import Prepare, Unwritable
from pipeline.adapters.avro.writers import FindText, Writer, WriterSchemas
from pipeline.errors import InvalidJob, PayloadError, SchemaError, UnknownJobType

__all__ = ["AvroCodec"]


@dataclass(frozen=True, slots=True)
class _Reader:
    """How payloads of one writer schema are decoded. `target` is None when writer and reader are the same."""

    writer: Writer
    target: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Binding:
    """A registered job type. `readers` are found by the ten bytes a payload starts with, and grow with use."""

    model: type[BaseModel]
    newest: SchemaVersion
    header: bytes
    prepare: Prepare
    validate: Callable[..., BaseModel]
    readers: dict[bytes, _Reader]


class AvroCodec:
    """The `Codec` of payloads in Avro single-object encoding. Safe to call from several threads.

    The newest schema of the catalog is what is written; older versions are read as the newest. A payload of
    an unknown version is decoded with the text that `writer_schemas` gives for its fingerprint (8 bytes, as on
    the wire); what that raises passes through. A model's own serializers are not used: Avro gets its fields.
    """

    def __init__(self, catalog: SchemaCatalog, writer_schemas: FindText | None = None) -> None:
        self._catalog = catalog
        self._writers = WriterSchemas(catalog, writer_schemas)
        self._bindings: dict[str, _Binding] = {}

    def register(self, job_type: str, model: type[BaseModel]) -> None:
        """Bind a job type to its payload model. Raises `SchemaError` when model and newest schema differ."""
        newest = self._catalog.latest(job_type)
        writers = self._writers.packaged(job_type)
        target = writers[header_of(newest.fingerprint)]
        for version in self._catalog.versions(job_type):
            if (problem := disagreement(version, newest)) is not None:
                raise SchemaError(f"{version.path} and {newest.path}: {problem}")
        self._bindings[job_type] = _Binding(
            model=model,
            newest=newest,
            header=header_of(newest.fingerprint),
            prepare=match_model(model, newest),
            validate=model.model_validate,
            readers={
                header: _Reader(writer, None if writer is target else target.reading)
                for header, writer in writers.items()
            },
        )

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
            raise InvalidJob(f"{job_type}: field {error.path!r} {error}") from None
        try:
            schemaless_writer(buffer, binding.newest.schema, values)
        except Exception as error:  # noqa: BLE001 - fastavro raises anything; see _refuse_payload for "from None"
            _refuse_payload(binding, values, error)
        return buffer.getvalue()

    def decode(self, job_type: str, data: bytes) -> BaseModel:
        """The payload as the registered model, whatever version it was written as.

        Raises `UnknownWriterSchema` when its schema cannot be found, `PayloadError` for any other bad input.
        """
        binding = self._binding(job_type)
        reader = binding.readers.get(data[:HEADER_SIZE])
        if reader is None:
            reader = self._new_reader(job_type, binding, data)
        values = _read(job_type, data, reader)
        try:
            # Avro has the types right already; lax, so that enum symbols become members in strict models, too.
            return binding.validate(values, strict=False)
        except Exception as error:  # noqa: BLE001 - validators of users raise anything
            _refuse_values(job_type, binding, reader, error)

    def describe(self, job_type: str, data: bytes) -> dict[str, object]:
        """Schema, fingerprint and payload as JSON values, as its writer saw it. Raises like `decode`.

        The job type need not be registered, only to have schemas.
        """
        writer = self._find_writer(job_type, data)
        return {
            "schema": writer.parsed.label,
            "fingerprint": writer.parsed.fingerprint.hex(),
            "payload": plain(_read(job_type, data, _Reader(writer, None))),
        }

    def _binding(self, job_type: str) -> _Binding:
        binding = self._bindings.get(job_type)
        if binding is None:
            raise UnknownJobType(
                f"job type {job_type!r} is not registered; known: {', '.join(self._bindings) or 'none'}"
            )
        return binding

    def _new_reader(self, job_type: str, binding: _Binding, data: bytes) -> _Reader:
        writer = self._find_writer(job_type, data)
        if (problem := disagreement(writer.parsed, binding.newest)) is not None:
            raise PayloadError(f"{job_type}: written as {writer.parsed.label}: {problem}")
        target = binding.readers[binding.header].writer.reading
        reader = binding.readers[header_of(writer.parsed.fingerprint)] = _Reader(writer, target)
        return reader

    def _find_writer(self, job_type: str, data: bytes) -> Writer:
        try:
            return self._writers.find(job_type, data)
        except PayloadError as error:
            raise type(error)(f"{job_type}: {error}") from error


def _read(job_type: str, data: bytes, reader: _Reader) -> Any:
    # One byte more than there is: a field that is skipped although it is cut short reads past the end of
    # the payload without an error, and only the position betrays it.
    buffer = BytesIO(data + b"\x00")
    buffer.seek(HEADER_SIZE)
    try:
        values = schemaless_reader(buffer, reader.writer.reading, reader.target)
    except Exception as error:  # noqa: BLE001 - fastavro raises anything on bad bytes
        reason = "they end too early" if isinstance(error, EOFError) else type(error).__name__
        _refuse_bytes(job_type, data, reader, reason)
    if (excess := len(data) - buffer.tell()) != 0:
        _refuse_bytes(
            job_type, data, reader, "they end too early" if excess < 0 else f"{excess} bytes too many"
        )
    return values


# The errors below are raised "from None", and without the foreign message: those quote the payload.


def _refuse_payload(binding: _Binding, values: Any, error: Exception) -> NoReturn:
    job_type, model = binding.newest.job_type, binding.model.__name__
    reason = "text with a lone surrogate" if isinstance(error, UnicodeEncodeError) else type(error).__name__
    field = _culprit(binding, values)
    raise InvalidJob(f"{job_type}: field {field!r} of {model} cannot be written as Avro: {reason}") from None


def _culprit(binding: _Binding, values: Any) -> str:
    """The field that fails when it is written alone."""
    schema = binding.newest.schema
    for field in schema["fields"]:
        try:
            schemaless_writer(BytesIO(), {**schema, "fields": [field]}, values)
        except Exception:  # noqa: BLE001 - whatever fails names the field
            return str(field["name"])
    return "?"


def _refuse_bytes(job_type: str, data: bytes, reader: _Reader, reason: str) -> NoReturn:
    label = reader.writer.parsed.label
    raise PayloadError(f"{job_type}: {len(data)} bytes that are not a valid {label}: {reason}") from None


def _refuse_values(job_type: str, binding: _Binding, reader: _Reader, error: Exception) -> NoReturn:
    label, model = reader.writer.parsed.label, binding.model.__name__
    if isinstance(error, ValidationError):
        # Only the field: deeper steps may be keys of a map, which are payload.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = f"field {first['loc'][0]!r}" if first["loc"] else "as a whole"
        problem = f"{place}: {first['type']} ({error.error_count()} in all)"
    else:
        problem = f"its validator raised {type(error).__name__}"
    raise PayloadError(f"{job_type}: {model} refuses a payload of {label}: {problem}") from None
