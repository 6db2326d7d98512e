"""Finding the schema that a payload was written with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.adapters.avro.catalog import SchemaCatalog
from pipeline.adapters.avro.logical import disagreement, reading_form
from pipeline.adapters.avro.parsing import ParsedSchema, parse
from pipeline.core.writer_schemas import FindWriterSchema, WriterRef
from pipeline.errors import PayloadError, SchemaError, UnknownWriterSchema

__all__ = ["Writer", "WriterSchemas"]


@dataclass(frozen=True, slots=True)
class Writer:
    """A schema that payloads are written with, and its form for decoding them."""

    parsed: ParsedSchema
    reading: dict[str, Any]


class WriterSchemas:
    """Packaged versions first, then what `find_text` (a registry, a topic) has under the name.

    A text that was found is kept; one that was not is asked for again, as it may appear any moment.
    """

    def __init__(self, catalog: SchemaCatalog, find_text: FindWriterSchema | None) -> None:
        self._catalog = catalog
        self._find_text = find_text
        self._packaged: dict[str, dict[bytes, Writer]] = {}
        self._fetched: dict[WriterRef, Writer] = {}

    def packaged(self, job_type: str) -> dict[bytes, Writer]:
        """The released versions of a job type, oldest first, by fingerprint.

        Versions that differ in documentation or defaults alone share a fingerprint; the newest stands for them.
        Raises `SchemaError`.
        """
        known = self._packaged.get(job_type)
        if known is None:
            versions = self._catalog.versions(job_type)
            known = {version.fingerprint: Writer(version, reading_form(version)) for version in versions}
            self._packaged[job_type] = known
        return known

    def find(self, job_type: str, ref: WriterRef) -> Writer:
        """The writer schema of a payload.

        Raises `PayloadError`, its kind `UnknownWriterSchema`, `SchemaError`, and what `find_text` raises.
        """
        packaged = self.packaged(job_type)
        writer = packaged.get(ref.value) if ref.kind == "fingerprint" else None
        if writer is None:
            if ref.kind == "fingerprint":
                self._refuse_other_job_type(ref)
            writer = _same(self._fetched.get(ref) or self._fetch(ref), packaged)
        self._refuse_other_record(job_type, writer)
        return writer

    def known(self, job_type: str, ref: WriterRef, text: str) -> Writer:
        """What `find` gives from now on where a text is at hand already. Raises `PayloadError`."""
        return _same(self._keep(ref, text), self.packaged(job_type))

    def _fetch(self, ref: WriterRef) -> Writer:
        text = self._find_text(ref) if self._find_text is not None else None
        if text is None:
            raise UnknownWriterSchema(_unknown(ref))
        return self._keep(ref, text)

    def _keep(self, ref: WriterRef, text: str) -> Writer:
        try:
            parsed = parse(text, str(ref))
        except SchemaError as error:
            raise PayloadError(str(error)) from error
        # Whoever stored the text may be wrong, and the wrong schema gives wrong values without an error.
        if ref.kind == "fingerprint" and parsed.fingerprint != ref.value:
            raise UnknownWriterSchema(
                f"{ref}: the text found for it has fingerprint {parsed.fingerprint.hex()}"
            )
        writer = self._fetched[ref] = Writer(parsed, reading_form(parsed))
        return writer

    def _refuse_other_job_type(self, ref: WriterRef) -> None:
        for version in self._catalog.loaded():
            if version.fingerprint == ref.value:
                raise PayloadError(f"written as {version.label}")

    def _refuse_other_record(self, job_type: str, writer: Writer) -> None:
        expected = self._catalog.latest(job_type).fullname
        if writer.parsed.fullname != expected:
            raise PayloadError(f"written as {writer.parsed.fullname}, not {expected}")


def _same(writer: Writer, packaged: dict[bytes, Writer]) -> Writer:
    """The packaged version that the writer is. Equal fingerprints alone do not tell: they leave logical types out."""
    same = packaged.get(writer.parsed.fingerprint)
    return same if same is not None and disagreement(writer.parsed, same.parsed) is None else writer


def _unknown(ref: WriterRef) -> str:
    if ref.kind == "fingerprint":
        return f"written with {ref}, which is not known here: by a newer publisher?"
    return f"written with {ref}, which is not known here: is schema_registry.url set, and the right one?"
