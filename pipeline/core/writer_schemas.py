"""How a payload names the schema that it was written with, and what is told of a schema that payloads are written with."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

__all__ = ["FindWriterSchema", "WriterRef", "WrittenSchema"]


class WriterRef(NamedTuple):
    """The name of a writer schema, as on the wire: a fingerprint (8 bytes), an id (4) or a GUID (16) of a registry."""

    kind: Literal["fingerprint", "id", "guid"]
    value: bytes

    @property
    def number(self) -> int:
        """The id of a registry."""
        return int.from_bytes(self.value, "big")

    def __str__(self) -> str:
        if self.kind == "fingerprint":
            return f"schema {self.value.hex()}"
        return f"registry schema {self.number if self.kind == 'id' else self.value.hex()}"


class WrittenSchema(NamedTuple):
    """The schema that jobs of a type are written with here. `subject` is its name in a registry: the record's full name."""

    job_type: str
    version: int
    fingerprint: bytes
    subject: str
    text: str


class FindWriterSchema(Protocol):
    """Where the texts of schemas are found that are not packaged here."""

    def __call__(self, ref: WriterRef, /) -> str | None:
        """The text, or None when it is not known (yet).

        Raises `RegistryUnavailable` or `BrokerUnavailable` when it cannot be asked for at the moment, `PayloadError`
        when what has that name is no Avro schema.
        """
        ...
