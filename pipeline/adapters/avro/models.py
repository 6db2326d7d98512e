"""Does a payload model say the same as the newest schema, defaults included?"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from pipeline.adapters.avro.catalog import SchemaVersion
from pipeline.adapters.avro.generating import as_default
from pipeline.adapters.avro.matching import match_model
from pipeline.core.findings import Finding
from pipeline.errors import SchemaError

__all__ = ["check_model"]


def check_model(model: type[BaseModel], newest: SchemaVersion) -> Iterator[Finding]:
    """What differs. A default that only one of the two has is none of it: old payloads get the schema's, new ones the model's."""
    try:
        match_model(model, newest)
    except SchemaError as error:
        yield _found(newest, "", str(error))
        return
    for field in newest.schema["fields"]:
        info = model.model_fields[field["name"]]
        if "default" not in field or info.is_required():
            continue
        try:
            mine = as_default(info.get_default(call_default_factory=True))
        except ValueError as error:
            yield _found(newest, field["name"], str(error))
            continue
        if mine != field["default"]:
            problem = f"its default is {field['default']!r} in the schema, but {mine!r} in {model.__name__}"
            yield _found(newest, field["name"], problem)


def _found(newest: SchemaVersion, place: str, problem: str) -> Finding:
    return Finding("model-differs", str(newest.path), place, f"v{newest.version}", problem)
