"""An instance of a JSON schema, as text: what the fake engine generates under a constraint."""

import json
from collections.abc import Mapping
from typing import Any

from engine_adapter.fake.tokens import draw
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.text import truncate

_UNSUPPORTED = ("pattern", "not", "if", "contains", "allOf", "oneOf", "multipleOf", "prefixItems")
_MAX_DEPTH = 32
_MAX_LENGTH = 100_000
_MAX_VALUES = 10_000
_MAX_NUMBER = 1e300
_OPTIONAL_DEPTH = 4
"""Below this depth optional properties are left out, so that recursive schemas end."""

_NUMBER = (int, float)
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "properties": dict,
    **dict.fromkeys(("required", "anyOf", "enum"), list),
    "format": str,
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), int),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
}
"""Keyword -> the type of its value. Schemas come here unchecked."""

_WORDS = ("alpha", "bravo", 'a "quoted" word', "délta", "{echo}", "[fox]\n", "")
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "a@example.org",
    "hostname": "example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def instance_text(schema_text: str, key: int, param: str) -> str:
    """Compact JSON that fits the schema; equal for equal keys. Properties are in its order.

    Raises `InvalidRequest`, naming `param`, for a keyword that it does not know how to satisfy, and
    for one whose value has the wrong type.
    """
    value = _Writer(json.loads(schema_text), key, param).value()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Writer:
    def __init__(self, root: Mapping[str, Any], key: int, param: str) -> None:
        self._root = root
        self._key = key
        self._param = param
        self._draws = 0
        self._values = 0

    def value(self) -> Any:
        return self._value(self._root, 0)

    def _draw(self, count: int) -> int:
        """A number in [0, count)."""
        self._draws += 1
        return draw(self._key, self._draws) % count

    def _value(self, schema: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise self._refusal("a schema of this depth")
        self._values += 1
        if self._values > _MAX_VALUES:
            raise self._refusal(f"a text of more than {_MAX_VALUES} values")
        if not isinstance(schema, Mapping):
            return None
        self._check(schema)
        if isinstance(ref := schema.get("$ref"), str):
            return self._value(self._target(ref), depth + 1)
        if "const" in schema:
            return schema["const"]
        if choices := schema.get("enum"):
            return choices[self._draw(len(choices))]
        if branches := schema.get("anyOf"):
            return self._value(branches[self._draw(len(branches))], depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return bool(self._draw(2))
            case "null":
                return None
            case _:
                raise self._refusal(f"type {kind!r}")

    def _check(self, schema: Mapping[str, Any]) -> None:
        """Refuses keywords that are not supported, and values of which nothing can be made."""
        for keyword in _UNSUPPORTED:
            if keyword in schema:
                raise self._refusal(keyword)
        for keyword, kind in _KINDS.items():
            if keyword not in schema:
                continue
            value = schema[keyword]
            if not isinstance(value, kind) or isinstance(value, bool):
                raise self._refusal(f"{keyword} of the type {type(value).__name__}")
            if isinstance(value, _NUMBER) and not -_MAX_NUMBER <= value <= _MAX_NUMBER:
                raise self._refusal(f"a {keyword} beyond {_MAX_NUMBER}")
            if kind is int and isinstance(value, int) and value < 0:
                raise self._refusal(f"a {keyword} below 0")
        if not all(isinstance(name, str) for name in schema.get("required", ())):
            raise self._refusal("required names that are not strings")

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        properties = schema.get("properties", {})
        names = [n for n in properties if depth < _OPTIONAL_DEPTH or n in required]
        names += [name for name in required if name not in properties]
        return {name: self._value(properties.get(name, {}), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        minimum = schema.get("minItems", 0)
        maximum = max(min(schema.get("maxItems", minimum + 2), minimum + 2), minimum)
        count = minimum + self._draw(maximum - minimum + 1) if depth < _OPTIONAL_DEPTH else minimum
        return [self._value(schema.get("items", {}), depth + 1) for _ in range(count)]

    def _string(self, schema: Mapping[str, Any]) -> str:
        if (form := schema.get("format")) in _FORMATS:
            return _FORMATS[form]
        text = _WORDS[self._draw(len(_WORDS))]
        min_length, max_length = schema.get("minLength", 0), schema.get("maxLength")
        if min_length > _MAX_LENGTH:
            raise self._refusal(f"a minLength above {_MAX_LENGTH}")
        return text.ljust(min_length, "x")[:max_length]

    def _number(self, schema: Mapping[str, Any]) -> int:
        minimum = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        maximum = schema.get("maximum", schema.get("exclusiveMaximum", minimum + 10) - 1)
        minimum = -int(-minimum // 1)
        return minimum + self._draw(max(int(maximum // 1) - minimum, 0) + 1)

    def _target(self, ref: str) -> Any:
        node: Any = self._root
        for step in ref.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, Mapping) else None
        if node is None:
            raise self._refusal(f"$ref {ref!r}")
        return node

    def _refusal(self, what: str) -> InvalidRequest:
        return InvalidRequest(self._param, f"the fake engine does not support {truncate(what)}")
