"""From a payload model to its schema: what `pipeline schemas new` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn, get_args, get_origin
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, RootModel
from pydantic.fields import FieldInfo

from pipeline.adapters.avro.annotations import name_of, optional_type, unwrap
from pipeline.adapters.avro.logical import MAX_PRECISION
from pipeline.adapters.avro.parsing import ParsedSchema
from pipeline.errors import SchemaError

__all__ = ["as_default", "schema_text"]

_PLAIN: Mapping[Any, Any] = {
    str: "string",
    bytes: "bytes",
    float: "double",
    bool: "boolean",
    UUID: {"type": "string", "logicalType": "uuid"},
    date: {"type": "int", "logicalType": "date"},
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    AwareDatetime: {"type": "long", "logicalType": "timestamp-micros"},
}
_SUPPORTED = (
    "str, int, float, bool, bytes, UUID, date, datetime, Decimal with max_digits and decimal_places, an Enum of strings, "
    "list[...], dict[str, ...], another model, and any of these or None"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Members that say "none of the others", so that a reader may take them for what it does not know.
_STAND_INS = ("UNKNOWN", "UNSPECIFIED", "OTHER")


def schema_text(
    model: type[BaseModel],
    *,
    namespace: str,
    previous: ParsedSchema | None = None,
    enum_defaults: Mapping[str, str] | None = None,
) -> str:
    """The schema of a model, as text for a file. Names, documentation and aliases are kept from the `previous` version.

    `enum_defaults` names the default symbol of enums, by class. Raises `SchemaError` that names the field whose type has no
    place in a payload.
    """
    maker = _Maker(_previous_records(previous), enum_defaults or {})
    schema = maker.record(model, path="")
    whole, _, name = (previous.fullname if previous else f"{namespace}.{model.__name__}").rpartition(".")
    ordered = {
        "type": "record",
        "name": name,
        "namespace": whole,
        **{k: v for k, v in schema.items() if k not in ("type", "name")},
    }
    return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def as_default(value: Any) -> Any:
    """A value as Avro writes defaults. Raises `ValueError` for one that cannot be a default."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [as_default(item) for item in value]
    if isinstance(value, dict):
        return {key: as_default(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return {name: as_default(getattr(value, name)) for name in type(value).model_fields}
    raise ValueError(f"a default of type {type(value).__name__} cannot be written in a schema")


def _previous_records(previous: ParsedSchema | None) -> dict[str, dict[str, Any]]:
    """Records and enums of the version before, by their short names, as they stand in its text."""
    found: dict[str, dict[str, Any]] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "name" in node and node.get("type") in ("record", "enum"):
                found[str(node["name"]).rpartition(".")[2]] = node
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    if previous is not None:
        walk(json.loads(previous.text))
        found[""] = json.loads(previous.text)  # the payload itself, whatever its model is called
    return found


class _Maker:
    def __init__(self, previous: Mapping[str, dict[str, Any]], enum_defaults: Mapping[str, str]) -> None:
        self._previous = previous
        self._enum_defaults = enum_defaults
        self._defined: dict[str, type] = {}
        self._open: list[type] = []

    def record(self, model: type[BaseModel], *, path: str) -> dict[str, Any]:
        if issubclass(model, RootModel) or model.model_config.get("extra") == "allow":
            self._refuse(path, model, "needs named fields, and no others")
        if model in self._open:
            self._refuse(path, model, "contains itself: use a list of plain values or ids instead")
        former = self._previous.get(model.__name__ if path else "", {})
        fields = {each["name"]: each for each in former.get("fields", ())}
        self._open.append(model)
        described = [
            self._field(name, info, fields.get(name, {}), f"{path}.{name}".lstrip("."))
            for name, info in model.model_fields.items()
        ]
        self._open.pop()
        own = (model.__dict__.get("__doc__") or "").strip().split("\n")[0]
        return {"type": "record", "name": model.__name__, **_notes(own, former), "fields": described}

    def _field(self, name: str, info: FieldInfo, former: Mapping[str, Any], path: str) -> dict[str, Any]:
        type_ = self._type(info.annotation, info.metadata, path, former.get("type"))
        field = {"name": name, **_notes(info.description or "", former), "type": type_}
        if info.is_required():
            # Still needed to read what was written before the field was there.
            return (
                {**field, "type": former["type"], "default": former["default"]}
                if "default" in former
                else field
            )
        try:
            default = as_default(info.get_default(call_default_factory=True))
        except ValueError:
            return field  # Avro cannot say it; the check tells when that matters
        if isinstance(type_, list) and default is not None:
            field["type"] = type_[::-1]  # a default belongs to the first branch
        return {**field, "default": default} if _may_have_default(field["type"]) else field

    def _type(self, annotation: Any, metadata: Iterable[Any], path: str, former: Any) -> Any:
        metadata = [*metadata, *_metadata(annotation)]
        annotation = unwrap(annotation)
        wanted = optional_type(annotation)
        if wanted is not None:
            return ["null", self._type(wanted, metadata, path, _branch(former))]
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is list:
            return {
                "type": "array",
                "items": self._type(arguments[0], (), f"{path}[]", _inner(former, "items")),
            }
        if origin is dict and unwrap(arguments[0]) is str:
            return {
                "type": "map",
                "values": self._type(arguments[1], (), f"{path}{{}}", _inner(former, "values")),
            }
        if isinstance(annotation, type) and issubclass(annotation, BaseModel | Enum):
            return self._named(annotation, path)
        if annotation is Decimal:
            return self._decimal(metadata, path)
        if annotation is int:
            return former if former in ("int", "long") else "int" if _fits_int(metadata) else "long"
        if annotation is not AwareDatetime and (not isinstance(annotation, type) or annotation not in _PLAIN):
            self._refuse(path, annotation, f"has no place in a payload; models may use {_SUPPORTED}")
        return _PLAIN[annotation]

    def _named(self, annotation: type, path: str) -> Any:
        name = annotation.__name__
        known = self._defined.get(name)
        if known is annotation:
            return name
        if known is not None:
            self._refuse(path, annotation, f"has the name of another class, {known.__module__}.{name}")
        made = (
            self.record(annotation, path=path)
            if issubclass(annotation, BaseModel)
            else self._enum(annotation, path)
        )
        self._defined[name] = annotation
        return made

    def _enum(self, enum: Any, path: str) -> dict[str, Any]:
        symbols = [member.value for member in enum]
        if not all(isinstance(symbol, str) and _NAME.fullmatch(symbol) for symbol in symbols):
            self._refuse(path, enum, "needs members whose values are names: letters, digits and '_'")
        former = self._previous.get(enum.__name__, {})
        default = self._enum_defaults.get(enum.__name__) or former.get("default")
        default = default or next((symbol for symbol in symbols if symbol.upper() in _STAND_INS), None)
        if default not in symbols:
            self._refuse(
                path,
                enum,
                "has no member that stands for those of newer versions: add one whose value is UNKNOWN, or name one with "
                f"--enum-default {enum.__name__}=SYMBOL",
            )
        return {
            "type": "enum",
            "name": enum.__name__,
            **_notes("", former),
            "symbols": symbols,
            "default": default,
        }

    def _decimal(self, metadata: Iterable[Any], path: str) -> dict[str, Any]:
        digits, places = _constraint(metadata, "max_digits"), _constraint(metadata, "decimal_places")
        if digits is None or places is None or not 0 <= places <= digits <= MAX_PRECISION:
            self._refuse(
                path,
                Decimal,
                f"needs Field(max_digits=..., decimal_places=...), at most {MAX_PRECISION} digits",
            )
        return {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": places}

    def _refuse(self, path: str, annotation: Any, problem: str) -> NoReturn:
        place = f"field {path!r}" if path else "the payload"
        raise SchemaError(f"{place}: {name_of(annotation)} {problem}")


def _notes(doc: str, former: Mapping[str, Any]) -> dict[str, Any]:
    """Documentation and aliases, which a model cannot fully say."""
    notes = {key: former[key] for key in ("doc", "aliases") if key in former}
    return {**notes, "doc": doc} if doc and not doc.startswith("Usage docs:") else notes


def _branch(former: Any) -> Any:
    """The type beside null in a union of the version before."""
    branches = [branch for branch in former if branch != "null"] if isinstance(former, list) else [former]
    return branches[0] if len(branches) == 1 else None


def _inner(former: Any, key: str) -> Any:
    return former.get(key) if isinstance(former, dict) else None


def _may_have_default(type_: Any) -> bool:
    """Readers would fill in the default as JSON has it: 0 instead of a time, text instead of bytes."""
    if isinstance(type_, list):
        return type_[0] == "null" or _may_have_default(type_[0])
    if isinstance(type_, dict):
        return type_.get("logicalType") in (None, "uuid") and type_["type"] != "record"
    return bool(type_ != "bytes")


def _metadata(annotation: Any) -> list[Any]:
    """The constraints in `Annotated[...]`, also those inside a `Field`."""
    found: list[Any] = []
    for item in getattr(annotation, "__metadata__", ()):
        found += item.metadata if isinstance(item, FieldInfo) else [item]
    return found


def _constraint(metadata: Iterable[Any], name: str) -> Any:
    return next((value for item in metadata if (value := getattr(item, name, None)) is not None), None)


def _fits_int(metadata: list[Any]) -> bool:
    """Whether the model's own bounds are those of 32 bits."""
    low = _constraint(metadata, "ge")
    high = _constraint(metadata, "le")
    return low is not None and high is not None and low >= -(2**31) and high < 2**31
