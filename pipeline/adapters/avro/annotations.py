"""Reading the type annotations of payload models."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, NewType, Union, get_args, get_origin

from pydantic import AwareDatetime

__all__ = ["name_of", "optional_type", "unwrap"]


def unwrap(annotation: Any) -> Any:
    """The type itself: without `Annotated`, `NewType` and aliases, whose constraints are the model's affair."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__"):  # `type X = ...` of Python 3.12
            annotation = annotation.__value__
        else:
            return annotation


def optional_type(annotation: Any) -> Any | None:
    """T of `T | None`; None for anything else."""
    if get_origin(annotation) not in (Union, UnionType):
        return None
    members = [member for member in get_args(annotation) if member is not NoneType]
    return members[0] if len(members) == 1 and len(members) < len(get_args(annotation)) else None


def name_of(annotation: Any) -> str:
    """The annotation as its author wrote it, more or less."""
    if annotation is AwareDatetime:
        return "AwareDatetime"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
