"""What is wrong with schemas: one finding each, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ADVICE", "Finding"]

# Rule -> what to do. Every rule that a finding may name is here.
ADVICE: Mapping[str, str] = {
    "unreadable": "repair the file; released versions stay as they were",
    "no-namespace": 'give the record a "namespace": a name without one clashes with those of others',
    "bad-name": "use letters, digits and '_', and no digit at the start: other languages make identifiers of it",
    "shared-name": "give each job type a record name of its own: payloads of one could pass for those of the other",
    "enum-without-default": 'give the enum a "default", the symbol that readers take for those they do not know yet',
    "bad-default": "make the default a value of the field's type; in a union, of its first branch",
    "incompatible": "add fields only with a default, and remove only fields that have one; a new type, a new name or a "
    "new field that is required is a new job type, not a new version",
    "logical-type-changed": "keep the logical type, its precision and its scale: readers in other languages would "
    "misread the number without an error; add a field instead",
    "bytes-and-string": "keep the type: bytes that are no UTF-8 could not be read; add a field instead",
    "sample-failed": "keep the types as they were, or declare a new job type",
    "released-changed": "put the released text back, and make the change in a new version",
    "released-vanished": "put the released file back: payloads written with it may still wait",
    "not-released": "release the versions in order: `pipeline schemas release`",
    "bad-lock": "put lock.json back from version control",
    "model-differs": "let the model say the same as the newest version, or write the next one: `pipeline schemas new`",
    "live-version": "ship the version that its publisher has before this one goes live, or replay those jobs later",
    "registry-level": "run `pipeline schemas push`, which sets the level",
    "registry-incompatible": "see what was registered there, and make the change in a way that fits",
}


class Finding(NamedTuple):
    """`file` is where to look, `place` the field (empty for the whole), `versions` which of them are concerned."""

    rule: str
    file: str
    place: str
    versions: str
    problem: str

    @property
    def advice(self) -> str:
        return ADVICE[self.rule]
