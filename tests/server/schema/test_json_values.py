"""Nesting, size and lone surrogates of JSON values."""

from typing import Any

import pytest

from server.schema.json_values import is_larger, is_nested_deeper, surrogate_path
from server.schema.messages import Message


@pytest.mark.parametrize(
    ("value", "levels"), [({}, 1), ({"a": 1}, 1), ({"a": [1, {}]}, 3), ({"a": {"b": {}}}, 3)]
)
def test_levels_of_objects_and_lists(value: Any, levels: int) -> None:
    assert not is_nested_deeper(value, levels)
    assert is_nested_deeper(value, levels - 1)


@pytest.mark.parametrize(
    ("value", "values", "chars"),
    [("", 1, 0), ("abc", 1, 3), ({"ab": "c", "d": 1.5}, 3, 4), ([{}, [None, ("x",)], {}], 7, 1)],
)
def test_the_size_of_a_value(value: Any, values: int, chars: int) -> None:
    assert not is_larger(value, values, chars)
    assert is_larger(value, values - 1, chars)
    assert is_larger(value, values, chars - 1)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": "x", "b": [1, None, "é😀"]}, None),
        ({"a": "x", "b": [1, {"c": "\ud800"}]}, "b.1.c"),
        ({"a": {"\udfff": 1}}, "a"),
        ({"a": "\ud800", "b": "\ud800"}, "a"),
        ({"m": [Message(role="user", content="x", name="\ud800")]}, "m.0.name"),  # type: ignore
        ("\ud800", ""),
    ],
)
def test_the_path_of_a_lone_surrogate(value: Any, path: str | None) -> None:
    assert surrogate_path(value) == path
    deep: Any = value
    for _ in range(5000):
        deep = [deep]
    found = surrogate_path(deep)
    assert (found is None) == (path is None)
