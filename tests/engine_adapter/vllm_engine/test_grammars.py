"""The grammars that constraints become: vLLM's own."""

import json

import pytest

from engine_adapter.seam.types import ConstraintKind
from engine_adapter.vllm_engine import grammars

SCHEMA = {
    "properties": {"a": {"properties": {}}, "b": {"type": "object"}},
    "$defs": {"c": {"patternProperties": {"^x": {}}, "additionalProperties": {"properties": {}}}},
    "items": {"properties": {"d": {"allOf": [{"properties": {"e": {}}}, {"if": {}}]}}},
    "anyOf": [{"properties": 5}, {"not": {"properties": {}}}, True, [{"properties": {}}]],
    "dependencies": {"a": ["b"], "b": {"properties": {}}},
    "const": {"properties": {}},
}


@pytest.mark.needs_vllm
@pytest.mark.parametrize("any_whitespace", [False, True])
@pytest.mark.parametrize("named_properties", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ConstraintKind.JSON_OBJECT, ""),
        (ConstraintKind.JSON_SCHEMA, '{"type": "object"}'),
        (ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA)),
        (ConstraintKind.REGEX, "a+"),
        (ConstraintKind.CHOICE, '["a", "b"]'),
        (ConstraintKind.GRAMMAR, 'root ::= "a"'),
    ],
)
def test_the_grammar_is_vllms(
    kind: ConstraintKind, value: str, any_whitespace: bool, named_properties: bool
) -> None:
    from vllm.v1.structured_output.backend_guidance import serialize_guidance_grammar
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    names = {ConstraintKind.JSON_SCHEMA: StructuredOutputOptions.JSON}
    option = names.get(kind) or StructuredOutputOptions[kind.name]
    vllms = serialize_guidance_grammar(option, value, not any_whitespace, named_properties)
    ours = grammars.serialized(
        kind, value, any_whitespace=any_whitespace, named_properties=named_properties
    )
    assert ours == vllms
