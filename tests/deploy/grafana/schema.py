"""Checks a dashboard's JSON against the types of Grafana's schema, as the SDK has them.

The SDK's classes are generated from Grafana's schema: what a class does not know is lost when it
reads the JSON, and what has a wrong type is not what its annotations say.
"""

import enum
import json
import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

OF_THE_DATA_SOURCE = frozenset({"titleFormat", "textFormat", "tagKeys", "step", "useValueForTime"})
"""Fields of an annotation that belong to Prometheus' plugin: no schema lists them."""


def findings(dashboard: dict[str, Any]) -> list[str]:
    """What of the JSON the schema does not know, and what has another type."""
    register_default_plugins()
    read = Dashboard.from_json(json.loads(json.dumps(dashboard)))
    written = json.loads(json.dumps(read, cls=JSONEncoder))
    return [*_differences("", dashboard, written), *_wrong_types("", read, Dashboard)]


def _differences(place: str, given: Any, kept: Any) -> Iterator[str]:
    """What the classes did not keep."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name in given.keys() - kept.keys():
            if not (place.startswith("/annotations/list/") and name in OF_THE_DATA_SOURCE):
                yield f"{place}/{name} is unknown"
        for name in given.keys() & kept.keys():
            yield from _differences(f"{place}/{name}", given[name], kept[name])
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for i, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _differences(f"{place}/{i}", one, other)
    elif given != kept:
        yield f"{place}: {given!r} is read as {kept!r}"


def _wrong_types(place: str, value: Any, wanted: Any) -> Iterator[str]:
    """Values that are not of the annotated types; classes of the SDK are looked into."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (object, Any) or isinstance(wanted, typing.TypeVar):
        pass
    elif origin in (typing.Union, UnionType):
        tried = [list(_wrong_types(place, value, one)) for one in inner]
        if all(tried):
            # The alternative that fits best: the class of the value, not `None`.
            yield from min(
                (t for t, one in zip(tried, inner, strict=True) if one is not NoneType), key=len
            )
    elif origin is typing.Literal:
        if value not in inner:
            yield f"{place}: {value!r} is none of {inner}"
    elif origin in (list, dict):
        if not isinstance(value, origin):
            yield f"{place}: {value!r} is not {origin.__name__}"
            return
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in parts:
            yield from _wrong_types(f"{place}/{name}", one, inner[-1])
    else:
        yield from _wrong_class(place, value, wanted)


def _wrong_class(place: str, value: Any, wanted: type) -> Iterator[str]:
    if issubclass(wanted, enum.Enum):
        if value not in list(wanted):
            yield f"{place}: {value!r} is not {wanted.__name__}"
    elif wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{place}: {value!r} is not a number"
    elif not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        yield f"{place}: {value!r} is not {wanted.__name__}"
    elif hasattr(value, "to_json"):
        for name, kind in typing.get_type_hints(type(value)).items():
            if not name.startswith("_"):
                yield from _wrong_types(f"{place}/{name}", getattr(value, name), kind)
