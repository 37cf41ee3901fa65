"""Metrics that several engines of one server share: each name exists once in a registry."""

from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry

_FAMILIES: WeakKeyDictionary[CollectorRegistry, dict[str, Any]] = WeakKeyDictionary()


def family(registry: CollectorRegistry, kind: type, name: str, *args: Any, **kwargs: Any) -> Any:
    """The engines' metric of that name in a registry, made on first use.

    Args:
        kind: `Counter`, `Gauge` or `Histogram`, which gets the name and the other arguments.
    """
    families = _FAMILIES.setdefault(registry, {})
    if name not in families:
        families[name] = kind(name, *args, registry=registry, **kwargs)
    return families[name]
