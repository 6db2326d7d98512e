"""Does a payload model say the same as its schema? Checked once, when a job type is registered.

The result of the check is the preparer of the whole payload (see `preparing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn, get_args, get_origin
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, RootModel
from pydantic.fields import FieldInfo

from pipeline.adapters.avro import preparing
from pipeline.adapters.avro.annotations import name_of, optional_type, unwrap
from pipeline.adapters.avro.catalog import SchemaVersion
from pipeline.adapters.avro.logical import logical_type
from pipeline.adapters.avro.preparing import Prepare
from pipeline.adapters.avro.tree import Named, Schema, children, describe_type, kind, resolve
from pipeline.errors import SchemaError

__all__ = ["match_model"]

# What a Python type may be in Avro, and how its values are prepared. No float: it would round what was published.
_SCALARS: Mapping[Any, Mapping[tuple[str, str | None], Prepare | None]] = {
    str: {("string", None): None},
    bytes: {("bytes", None): None},
    float: {("double", None): preparing.real_number},
    bool: {("boolean", None): preparing.instance(bool)},
    int: {
        ("int", None): preparing.bounded_int("int", 32),
        ("long", None): preparing.bounded_int("long", 64),
    },
    UUID: {("string", "uuid"): preparing.uuid_text},
    date: {("int", "date"): preparing.days},
    datetime: {("long", "timestamp-micros"): preparing.microseconds},
    AwareDatetime: {("long", "timestamp-micros"): preparing.microseconds},
}
_SUPPORTED = (
    "str, int, float, bool, bytes, UUID, date, datetime, Decimal, an Enum of strings, list[...], dict[str, ...], "
    "another model, and any of these or None"
)


def match_model(model: type[BaseModel], version: SchemaVersion) -> Prepare:
    """Check that the model has the schema's fields, each of the same type.

    Raises `SchemaError` that names the field, both types and the file.
    """
    return _Matcher(version).payload(model, version.schema, path="")


class _Matcher:
    def __init__(self, version: SchemaVersion) -> None:
        self._version = version

    def payload(self, model: type[BaseModel], schema: Mapping[str, Any], *, path: str) -> Prepare:
        self._refuse_lossy(model, path)
        types = {field["name"]: field["type"] for field in schema["fields"]}
        for name in sorted(types.keys() - model.model_fields.keys()):
            self._refuse(path + name, f"{describe_type(types[name])}, but {model.__name__} has no such field")
        prepared = []
        for field in schema["fields"]:
            info = model.model_fields[field["name"]]
            self._refuse_alias(model, path + field["name"], info)
            self._refuse_default(path + field["name"], field)
            prepared.append(
                (field["name"], self._value(info.annotation, field["type"], path + field["name"]))
            )
        for name in sorted(model.model_fields.keys() - types.keys()):
            annotation = model.model_fields[name].annotation
            self._refuse(path + name, f"missing, but {name_of(annotation)} in {model.__name__}")
        return preparing.record(model, [(name, prepare) for name, prepare in prepared if prepare is not None])

    def _value(self, annotation: Any, schema: Schema, path: str) -> Prepare | None:
        annotation = unwrap(annotation)
        schema = resolve(schema, self._version.named)
        if isinstance(schema, list):
            return self._optional(annotation, schema, path)
        if isinstance(schema, dict):
            origin, arguments = get_origin(annotation), get_args(annotation)
            if schema["type"] == "record" and _is_model(annotation):
                return self.payload(annotation, schema, path=path + ".")
            if schema["type"] == "enum" and _is_enum(annotation, schema["symbols"]):
                return preparing.symbol(annotation)
            if schema["type"] == "array" and origin is list:
                return preparing.items_of(self._value(arguments[0], schema["items"], path + "[]"))
            if schema["type"] == "map" and origin is dict and unwrap(arguments[0]) is str:
                return preparing.values_of(self._value(arguments[1], schema["values"], path + "{}"))
        return self._scalar(annotation, schema, path)

    def _scalar(self, annotation: Any, schema: Schema, path: str) -> Prepare | None:
        logical = logical_type(schema)
        if annotation is Decimal and logical == "decimal" and isinstance(schema, dict):
            return preparing.bounded_decimal(schema["precision"], schema.get("scale", 0))
        # Only classes: other annotations may be unhashable, and none of them is supported.
        options = _SCALARS.get(annotation, {}) if isinstance(annotation, type) else {}
        if (kind(schema), logical) not in options:
            self._refuse_types(annotation, schema, path)
        return options[kind(schema), logical]

    def _optional(self, annotation: Any, schema: list[Any], path: str) -> Prepare:
        wanted = optional_type(annotation)
        branches = [branch for branch in schema if kind(branch) != "null"]
        if wanted is None or len(branches) != 1 or len(schema) != 2:
            self._refuse_types(annotation, schema, path)
        definition = resolve(branches[0], self._version.named)
        name = definition.get("name") if isinstance(definition, dict) else None
        return preparing.optional(name or kind(definition), self._value(wanted, definition, path))

    def _refuse_lossy(self, model: type[BaseModel], path: str) -> None:
        if issubclass(model, RootModel):
            self._refuse(path, f"a record, but {model.__name__} is a RootModel: give it named fields")
        if model.model_config.get("extra") == "allow":
            self._refuse(path, f"fixed, but {model.__name__} allows extra fields, which would be lost")

    def _refuse_alias(self, model: type[BaseModel], path: str, info: FieldInfo) -> None:
        by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
        if info.validation_alias is not None and not by_name:
            self._refuse(
                path, f"read by its name, but has an alias: set populate_by_name=True in {model.__name__}"
            )

    def _refuse_default(self, path: str, field: Mapping[str, Any]) -> None:
        """Refuse what would be filled in as JSON has it: 0 instead of a time, text instead of bytes."""
        if field.get("default") in (None, [], {}):
            return
        unsafe = _without_safe_default(field["type"], self._version.named)
        if unsafe is not None:
            advice = "make it optional with the default null"
            self._refuse(path, f"given a default, which is not possible with {unsafe}: {advice}")

    def _refuse_types(self, annotation: Any, schema: Schema, path: str) -> NoReturn:
        theirs = f"{name_of(annotation)}{_values_of_enum(annotation)}"
        self._refuse(path, f"{describe_type(schema)}, but {theirs} in the model; models may use {_SUPPORTED}")

    def _refuse(self, path: str, problem: str) -> NoReturn:
        place = f"field {path.rstrip('.')!r}" if path else "the payload"
        raise SchemaError(f"{self._version.path}: {place} is {problem}")


def _without_safe_default(schema: Schema, named: Named) -> str | None:
    schema = resolve(schema, named)
    if kind(schema) in ("bytes", "fixed") or logical_type(schema) not in (None, "uuid"):
        return describe_type(schema)
    found = (_without_safe_default(child, named) for _, child in children(schema))
    return next((unsafe for unsafe in found if unsafe is not None), None)


def _values_of_enum(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " (" + ", ".join(str(member.value) for member in annotation) + ")"
    return ""


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_enum(annotation: Any, symbols: list[str]) -> bool:
    if not (isinstance(annotation, type) and issubclass(annotation, Enum)):
        return False
    return {member.value for member in annotation} == set(symbols)
