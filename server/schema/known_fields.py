"""Which fields a body has at a path: for the messages about a field that is unknown, or null."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo


def fields_at(kind: Any, path: Sequence[str | int]) -> dict[str, list[FieldInfo]]:
    """The declared fields of the object at `path` in a body of the type `kind`, by their names.

    A field has several entries where the object may be of several types.
    """
    kinds = list(_alternatives(kind))
    for step in path:
        kinds = [inner for outer in kinds for inner in _inside(outer, step)]
    fields: dict[str, list[FieldInfo]] = {}
    for model in kinds:
        for name, field in _fields(model).items():
            fields.setdefault(name, []).append(field)
    return fields


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a value of a type can have."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for alternative in get_args(kind):
            yield from _alternatives(alternative)
    elif isinstance(kind, type) and issubclass(kind, RootModel):
        yield from _alternatives(kind.model_fields["root"].annotation)
    else:
        yield kind


def _inside(kind: Any, step: str | int) -> Iterator[Any]:
    """The types of what is at a field's name or an index in a value of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(step, int):
        if origin in (list, tuple) and args:
            yield from _alternatives(args[0])
    elif origin is dict:
        yield from _alternatives(args[1])
    elif (field := _fields(kind).get(step)) is not None:
        yield from _alternatives(field.annotation)


def _fields(kind: Any) -> Mapping[str, FieldInfo]:
    """A model's fields by the names that they have in a body."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {}
    return {field.alias or name: field for name, field in kind.model_fields.items()}
