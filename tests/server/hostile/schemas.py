"""JSON schemas, in every field that takes one."""

import json
from typing import Any

from tests.server.hostile.body import RESPONSES, Fields, Hostile, in_string, outputs, schema

FORMAT = "response_format.json_schema.schema"


def doubling_refs(levels: int) -> Fields:
    """Definitions of which each refers twice to the one before: 2 ** levels paths."""
    defs: Fields = {"d0": {"type": "string"}}
    for i in range(1, levels + 1):
        ref = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = {
            "type": "object",
            "properties": {"a": ref, "b": ref},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/d{levels}", "$defs": defs}


def chained_refs(levels: int) -> Fields:
    """Definitions that refer from one to the next: compiled within each other."""
    defs: Fields = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "integer"}]}
        for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "string"}}}


def doubling_all_of(levels: int) -> Fields:
    """Definitions of which each intersects two alternatives of the one before."""
    defs: Fields = {"d0": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for i in range(1, levels + 1):
        ref = {"$ref": f"#/$defs/d{i - 1}"}
        branch = {"anyOf": [ref, {"properties": {f"p{i}": {"type": "integer"}}}]}
        defs[f"d{i}"] = {"allOf": [branch, branch]}
    return {"$ref": f"#/$defs/d{levels}", "$defs": defs}


def nested(levels: int) -> Fields:
    inner: Fields = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def nested_items(levels: int, count: int) -> Fields:
    inner: Fields = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner, "minItems": count, "maxItems": count}
    return inner


def texts(count: int, chars: int) -> list[str]:
    return [f"{i:04}" + "ab cd" * ((chars - 4) // 5) for i in range(count)]


def consts(count: int, chars: int) -> Fields:
    properties = {text[:4]: {"const": text} for text in texts(count, chars)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def tool(parameters: Any, name: str = "f") -> Fields:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SCHEMAS = (
    Hostile("minItems of 1e8", schema(lambda: {"type": "array", "minItems": 100_000_000})),
    Hostile("maxItems of 1e8", schema(lambda: {"type": "array", "maxItems": 100_000_000})),
    Hostile(
        "maxItems of 2,000",
        schema(lambda: {"type": "array", "maxItems": 2000, "items": {"type": "integer"}}),
    ),
    Hostile("items below items", schema(lambda: nested_items(5, 1_000_000_000))),
    Hostile("items below items, under the bound", schema(lambda: nested_items(20, 50))),
    Hostile(
        "items behind a reference",
        schema(lambda: {"$ref": "#/x/y", "x": {"y": {"type": "array", "maxItems": 1e8}}}),
        "response_format.json_schema.schema",
    ),
    Hostile("minLength of 1e9", schema(lambda: {"type": "string", "minLength": 1_000_000_000})),
    Hostile("maxLength of 1e9", schema(lambda: {"type": "string", "maxLength": 1_000_000_000})),
    Hostile("minLength of 5,000", schema(lambda: {"type": "string", "minLength": 5000})),
    Hostile(
        "minProperties of 1e8", schema(lambda: {"type": "object", "minProperties": 100_000_000})
    ),
    Hostile(
        "maxProperties of 1e8", schema(lambda: {"type": "object", "maxProperties": 100_000_000})
    ),
    Hostile("a number of 300 digits", schema(lambda: {"type": "integer", "maximum": 10**300})),
    Hostile(
        "a multiple of a small part",
        schema(lambda: {"type": "number", "multipleOf": 1e-9, "maximum": 1e9}),
    ),
    Hostile("a pattern that repeats", in_string("^a{1,100000}$")),
    Hostile("a pattern of 2^20 states", in_string("^(a|b)*a(a|b){20}$")),
    Hostile("a pattern of nested repetitions", in_string("^(((a|b){1,100}c){1,100}d){1,100}$")),
    Hostile("references that double, 24 times", schema(lambda: doubling_refs(24))),
    Hostile("references that double, 20 times", schema(lambda: doubling_refs(20))),
    Hostile("1,000 references in a row", schema(lambda: chained_refs(1000))),
    Hostile("intersections that double", schema(lambda: doubling_all_of(16))),
    Hostile("200 levels", schema(lambda: nested(200)), FORMAT),
    Hostile(
        "50,001 properties",
        schema(lambda: {"properties": {f"p{i}": {} for i in range(50_001)}}),
        FORMAT,
    ),
    Hostile(
        "2,000 properties",
        schema(
            lambda: {
                "type": "object",
                "properties": {f"p{i}": {"type": "string"} for i in range(2000)},
            }
        ),
    ),
    Hostile("an enum of 300,000", schema(lambda: {"enum": list(range(300_000))}), FORMAT),
    Hostile("an enum of 20,000", schema(lambda: {"enum": [f"v{i}" for i in range(20_000)]})),
    Hostile("a const of 400,000", schema(lambda: {"const": "ab cd" * 80_000}), FORMAT),
    Hostile("a const of 20,000", schema(lambda: {"const": "ab cd" * 4000})),
    Hostile(
        "a const as text",
        outputs(json=json.dumps({"const": "ab cd" * 80_000})),
        "structured_outputs.json",
    ),
    Hostile(
        "an enum of 100,000 in a tool",
        lambda: {
            "tools": [tool({"properties": {"a": {"enum": ["ab cd" * 20_000]}}})],
            "tool_choice": "required",
        },
        "tools.0.function.parameters",
    ),
    Hostile("ten consts of 20,000", schema(lambda: consts(10, 20_000))),
    Hostile("eleven consts of 20,000", schema(lambda: consts(11, 20_000)), FORMAT),
    Hostile("an enum of 2,000 times 100", schema(lambda: {"enum": texts(2000, 100)})),
    Hostile("names of 30,000", schema(lambda: {"properties": {"a" * 30_000: {}}}), FORMAT),
    Hostile(
        "five names of 20,000",
        schema(lambda: {"properties": {name: {} for name in texts(5, 20_000)}}),
    ),
    Hostile("a pattern of 30,000", in_string("ab" * 15_000), FORMAT),
    Hostile("a description of 1 MB", schema(lambda: {"description": "a" * 1_000_000}), FORMAT),
    Hostile(
        "a product of alternatives",
        schema(
            lambda: {
                "allOf": [
                    {"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(8)]}
                    for i in range(8)
                ]
            }
        ),
    ),
    Hostile(
        "a schema that no text fits",
        schema(
            lambda: {
                "type": "object",
                "properties": {"a": {"$ref": "#"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        ),
    ),
    Hostile("a reference to itself", schema(lambda: {"$ref": "#"}), FORMAT),
    Hostile("a long pointer", schema(lambda: {"$ref": "#" + "/a" * 200_000, "a": {}})),
    Hostile(
        "20,000 references",
        schema(
            lambda: {
                "properties": {f"p{i}": {"$ref": f"#/properties/p{i + 1}"} for i in range(20_000)}
            }
        ),
    ),
    Hostile("100,000 brackets as text", outputs(json="[" * 100_000), "structured_outputs.json"),
    Hostile(
        "2 MB of text", lambda: {"json_schema": '{"a":"' + "a" * 2_000_000 + '"}'}, "json_schema"
    ),
    Hostile(
        "an enum of 300,000 for Ollama",
        lambda: {"format": {"enum": list(range(300_000))}},
        "format",
    ),
    Hostile(
        "1,000 tools",
        lambda: {"tools": [tool({}, f"f{i}") for i in range(1000)], "tool_choice": "required"},
        "tools",
    ),
    Hostile(
        "128 tools of 10 kB",
        lambda: {
            "tools": [tool({"description": "a" * 10_000}, f"f{i}") for i in range(128)],
            "tool_choice": "required",
        },
        "tools.49.function.parameters",
    ),
    Hostile(
        "a tool of references that double",
        lambda: {
            "tools": [
                tool(
                    {
                        "type": "object",
                        "properties": {"a": {"$ref": "#/$defs/d24"}},
                        "$defs": doubling_refs(24)["$defs"],
                    }
                )
            ],
            "tool_choice": "required",
        },
    ),
    Hostile(
        "an enum of 300,000 in a response",
        lambda: {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "a",
                    "schema": {"enum": list(range(300_000))},
                }
            }
        },
        "text.format.schema",
        RESPONSES,
    ),
)
"""JSON schemas."""
