"""The instances that the fake engine generates under a JSON schema."""

import json
from typing import Any

import jsonschema
import pytest

from engine_adapter.fake.schema_text import instance_text
from engine_adapter.seam.errors import InvalidRequest

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "value": {"type": "integer"}},
    "required": ["value"],
}
SCHEMAS: list[dict[str, Any]] = [
    {},
    TREE,
    {"properties": {"a": {"type": "boolean"}}, "required": ["a", "b"]},
    {"type": "array", "items": {"enum": ["x", 1, None]}, "minItems": 2, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "string", "minLength": 12, "maxLength": 14},
    {"type": "string", "format": "date"},
    {"type": "integer", "minimum": 3, "maximum": 3},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 9},
    {"type": ["null", "string"]},
    {"anyOf": [{"const": 5}, {"type": "null"}, {"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": TREE}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_instances_fit_the_schema(schema: dict[str, Any]) -> None:
    if "$defs" in schema:
        schema = json.loads(json.dumps(schema).replace('"#"', '"#/$defs/a~1b"'))
    texts = [instance_text(json.dumps(schema), key, "p") for key in range(40)]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
    assert texts == [instance_text(json.dumps(schema), key, "p") for key in range(40)]


def test_properties_are_in_the_schemas_order_and_compact() -> None:
    schema = {"properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["a"]}
    assert instance_text(json.dumps(schema), 1, "p") == '{"b":1,"a":2}'


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"properties": {"a": {"not": {}}}},
        {"type": "colour"},
        {"$ref": "#/nowhere"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"properties": [{"a": {}}]},
        {"properties": None},
        {"type": "object", "required": "a"},
        {"type": "object", "required": [["a"]]},
        {"type": "object", "required": {"a": 1}},
        {"type": []},
        {"type": {"a": 1}},
        {"anyOf": {"a": 1}},
        {"enum": "a"},
        {"type": "array", "minItems": "a"},
        {"type": "array", "minItems": -1},
        {"type": "array", "maxItems": 1.5},
        {"type": "array", "minItems": True},
        {"type": "string", "format": ["date"]},
        {"type": "string", "maxLength": None},
        {"type": "integer", "minimum": "1"},
        {"type": "integer", "minimum": float("nan")},
        {"type": "number", "maximum": float("inf")},
        {"type": "integer", "exclusiveMinimum": 10**400},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_it_cannot_satisfy_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        instance_text(json.dumps(schema), 1, "tools")
    assert caught.value.param == "tools"
