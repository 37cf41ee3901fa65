"""The parameters of policies: dataclasses of numbers with limits, and how they are read."""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

P = TypeVar("P")


class PolicyError(ValueError):
    """A policy's parameter that cannot work. The text is the field, a colon, and the message.

    Attributes:
        field: the parameter's path, as `light.max_running`.
        message: the fault and the remedy.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def number(default: float, low: float, high: float) -> Any:
    """A dataclass field for a number in [low, high]; an integer if the default is one."""
    return field(default=default, metadata={"low": low, "high": high})


def read_parameters(kind: type[P], values: Mapping[str, Any], path: str = "") -> P:
    """The dataclass `kind` with these values, and its defaults for the others.

    Every field of `kind` is made with `number`.

    Raises:
        PolicyError: a name is unknown, or a value is not a number within its limits.
    """
    known_fields = {parameter.name: parameter for parameter in fields(kind)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known_fields:
            there_are = ", ".join(known_fields) or "none"
            raise PolicyError(f"{path}{name}", f"unknown; the parameters are {there_are}")
        check_number(
            f"{path}{name}", value, **known_fields[name].metadata, like=known_fields[name].default
        )
    return kind(**values)


def check_number(name: str, value: Any, low: float, high: float, like: Any = 1) -> None:
    """Raises `PolicyError` unless `value` is a number in [low, high], and an integer as `like`."""
    is_integer = type(like) is int
    kinds = (int,) if is_integer else (int, float)
    if type(value) not in kinds or not low <= value <= high:
        kind_name = "an integer" if is_integer else "a number"
        value_text = repr(value)[:80]
        raise PolicyError(name, f"must be {kind_name} in [{low}, {high}], got {value_text}")
