"""What is asked of a registry, in its own words: subjects, versions, ids, levels of compatibility."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from pipeline.adapters.registry.http import Answer, RegistryHttp
from pipeline.core.writer_schemas import WriterRef
from pipeline.errors import PayloadError, RegistryUnavailable, SchemaError

__all__ = ["LEVEL", "Registered", "RegistryClient"]

T = TypeVar("T")
# Publishers and workers are upgraded in any order, and old bytes wait in retry and dead-letter topics for weeks.
LEVEL = "FULL_TRANSITIVE"


class Registered(NamedTuple):
    """A schema under its id, as the registry keeps it."""

    id: int
    text: str


class RegistryClient:
    """Every method raises `RegistryUnavailable` when the registry does not answer, or not as one."""

    def __init__(self, http: RegistryHttp) -> None:
        self._http = http

    @property
    def url(self) -> str:
        return self._http.url

    # --- reading: for publishers and workers

    def find(self, ref: WriterRef) -> str | None:
        """The text of a writer schema; None for one that is not known, or not yet: a registry that has just started may
        say so of ids that it has. Raises `PayloadError` for a schema that is not Avro, or not whole.
        """
        if ref.kind == "guid":
            answer = self._http.ask("GET", f"/schemas/guids/{uuid.UUID(bytes=ref.value)}")
            # Registries that know no GUIDs answer so, too.
            return None if answer.status == 404 else self._avro_text(ref, answer)
        answer = self._http.ask("GET", f"/schemas/ids/{ref.number}")
        return None if self._is_unknown(answer) else self._avro_text(ref, answer)

    def look_up(self, subject: str, text: str) -> Registered | None:
        """The schema's id in that subject, with the text under that id; None when it is not registered there."""
        answer = self._http.ask("POST", f"/subjects/{_quoted(subject)}", {"schema": text})
        if self._is_unknown(answer):
            return None
        number = _field(self._required(answer), "id", int, self.url)
        found = self.find(WriterRef("id", number.to_bytes(4, "big")))
        return None if found is None else Registered(number, found)

    # --- for `pipeline schemas`

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, oldest first; none when there is no such subject."""
        answer = self._http.ask("GET", f"/subjects/{_quoted(subject)}/versions")
        return [] if self._is_unknown(answer) else [int(each) for each in self._required(answer)]

    def level(self, subject: str) -> str | None:
        """The subject's own level of compatibility; None when it has none, and that of the registry applies."""
        answer = self._http.ask("GET", f"/config/{_quoted(subject)}")
        if self._is_unknown(answer):
            return None
        return _field(self._required(answer), "compatibilityLevel", str, self.url)

    def set_level(self, subject: str) -> None:
        """Let the registry check every version against every other, and read back that it will.

        Registries differ in their defaults, and one of them accepts anything.
        """
        self._required(self._http.ask("PUT", f"/config/{_quoted(subject)}", {"compatibility": LEVEL}))
        level = self.level(subject)
        if level != LEVEL:
            raise SchemaError(
                f"{self.url}: subject {subject} has the level {level} after it was set to {LEVEL}"
            )

    def refusal(self, subject: str, version: int, text: str) -> str | None:
        """Why the registry finds a schema incompatible with one version; None when it does not."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/{version}?verbose=true"
        document = self._required(self._http.ask("POST", path, {"schema": text}))
        if _field(document, "is_compatible", bool, self.url):
            return None
        return "; ".join(str(each) for each in document.get("messages") or ()) or "incompatible"

    def register(self, subject: str, text: str) -> int:
        """Register a schema, and give its id; the one that it has when it is there already. Raises `SchemaError`."""
        answer = self._http.ask("POST", f"/subjects/{_quoted(subject)}/versions", {"schema": text})
        if not answer.found:
            raise SchemaError(f"{self.url} refuses a schema of subject {subject}: {answer.message}")
        return _field(answer.document, "id", int, self.url)

    # --- answers

    def _is_unknown(self, answer: Answer) -> bool:
        """Whether the registry says that there is no such thing. A 404 without its own number comes from somebody else."""
        if answer.status == 404 and not answer.code:
            raise RegistryUnavailable(
                f"there is no schema registry at {self.url}: it answers with status 404"
            )
        return answer.status == 404

    def _required(self, answer: Answer) -> Any:
        if not answer.found:
            raise SchemaError(f"{self.url}: {answer.message or f'status {answer.status}'}")
        return answer.document

    def _avro_text(self, ref: WriterRef, answer: Answer) -> str:
        if not answer.found:
            raise RegistryUnavailable(f"schema registry {self.url}: {ref}: {answer.message or answer.status}")
        document = answer.document
        text = _field(document, "schema", str, self.url)
        kind = document.get("schemaType") or "AVRO"
        if kind != "AVRO" or document.get("references"):
            what = f"a schema of type {kind}" if kind != "AVRO" else "a schema that refers to others"
            raise PayloadError(f"{ref} is {what}; allowed: Avro schemas that stand alone")
        return text


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _field(document: Any, name: str, kind: type[T], url: str) -> T:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise RegistryUnavailable(f"schema registry {url}: its answer has no {name}")
    return value
