"""Finding the schema that a payload was written with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipeline.adapters.avro.catalog import SchemaCatalog
from pipeline.adapters.avro.framing import header_of, read_fingerprint
from pipeline.adapters.avro.logical import reading_form
from pipeline.adapters.avro.parsing import ParsedSchema, parse
from pipeline.errors import PayloadError, SchemaError, UnknownWriterSchema

__all__ = ["FindText", "Writer", "WriterSchemas"]

FindText: TypeAlias = Callable[[bytes], str | None]


@dataclass(frozen=True, slots=True)
class Writer:
    """A schema that payloads are written with, and its form for decoding them."""

    parsed: ParsedSchema
    reading: dict[str, Any]


class WriterSchemas:
    """Packaged versions first, then what `find_text` (a registry, a topic) has under the fingerprint.

    A text that was found is kept; one that was not is asked for again, as it may appear any moment.
    """

    def __init__(self, catalog: SchemaCatalog, find_text: FindText | None) -> None:
        self._catalog = catalog
        self._find_text = find_text
        self._packaged: dict[str, dict[bytes, Writer]] = {}
        self._fetched: dict[bytes, Writer] = {}

    def packaged(self, job_type: str) -> dict[bytes, Writer]:
        """The released versions of a job type, oldest first, by the ten bytes that their payloads start with.

        Versions that differ in documentation or defaults alone share a fingerprint; the newest stands for them.
        Raises `SchemaError`.
        """
        known = self._packaged.get(job_type)
        if known is None:
            versions = self._catalog.versions(job_type)
            known = {
                header_of(version.fingerprint): Writer(version, reading_form(version)) for version in versions
            }
            self._packaged[job_type] = known
        return known

    def find(self, job_type: str, data: bytes) -> Writer:
        """The writer schema of a payload. Raises `PayloadError`, its kind `UnknownWriterSchema`, or `SchemaError`."""
        packaged = self.packaged(job_type)
        fingerprint = read_fingerprint(data)
        writer = packaged.get(header_of(fingerprint)) or self._fetched.get(fingerprint)
        if writer is None:
            self._refuse_other_job_type(fingerprint)
            writer = self._fetch(fingerprint)
        self._refuse_other_record(job_type, writer)
        return writer

    def _fetch(self, fingerprint: bytes) -> Writer:
        text = self._find_text(fingerprint) if self._find_text is not None else None
        if text is None:
            raise UnknownWriterSchema(
                f"written with schema {fingerprint.hex()}, which is not known here: by a newer publisher?"
            )
        source = f"schema {fingerprint.hex()}"
        try:
            parsed = parse(text, source)
        except SchemaError as error:
            raise PayloadError(str(error)) from error
        # Whoever stored the text may be wrong, and the wrong schema gives wrong values without an error.
        if parsed.fingerprint != fingerprint:
            raise UnknownWriterSchema(
                f"{source}: the text found for it has fingerprint {parsed.fingerprint.hex()}"
            )
        writer = self._fetched[fingerprint] = Writer(parsed, reading_form(parsed))
        return writer

    def _refuse_other_job_type(self, fingerprint: bytes) -> None:
        for version in self._catalog.loaded():
            if version.fingerprint == fingerprint:
                raise PayloadError(f"written as {version.label}")

    def _refuse_other_record(self, job_type: str, writer: Writer) -> None:
        expected = self._catalog.latest(job_type).fullname
        if writer.parsed.fullname != expected:
            raise PayloadError(f"written as {writer.parsed.fullname}, not {expected}")
