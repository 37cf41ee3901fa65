"""Which keywords of a schema are left out, and that llguidance agrees."""

import json
import time
from typing import Any

import pytest

from engine_adapter.seam.schema_keywords import FORMATS, MAX_ITEMS, UNENFORCED, num_items, relax

MANY = 100_000_000

UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "left", "removed"),
    [
        ({"type": "string"}, {"type": "string"}, ()),
        (UNIQUE, {"type": "array", "items": {"type": "string"}}, ("uniqueItems",)),
        (
            {"type": "string", "format": "password", "writeOnly": True},
            {"type": "string", "writeOnly": True},
            ("format:password",),
        ),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}, ()),
        ({"type": "integer", "format": "int32"}, {"type": "integer", "format": "int32"}, ()),
        ({"type": ["null", "string"], "format": "x"}, {"type": ["null", "string"]}, ("format:x",)),
        ({"format": 5, "pattern": {}}, {"format": 5, "pattern": {}}, ()),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}, ()),
        ({"type": "array", "not": False}, {"type": "array"}, ()),
        *(
            ({"type": "object", keyword: False}, {"type": "object"}, (keyword,))
            for keyword in sorted(UNENFORCED - {"not", "uniqueItems"})
        ),
        ({"type": "array", "minItems": MANY}, {"type": "array"}, ("minItems",)),
        (
            {"items": {"maxItems": float(MANY), "minItems": 1}},
            {"items": {"minItems": 1}},
            ("maxItems",),
        ),
        (
            {"minItems": 1, "maxItems": MAX_ITEMS - 1, "items": {"maxItems": 1}},
            {"minItems": 1, "maxItems": MAX_ITEMS - 1, "items": {}},
            ("maxItems",),
        ),
        ({"minItems": "1", "maxItems": None}, {"minItems": "1", "maxItems": None}, ()),
        (
            {"if": {"minimum": 1}, "then": {"maximum": 2}, "else": {}},
            {},
            ("if", "then", "else"),
        ),
        (
            {"properties": {"uniqueItems": UNIQUE, "format": {"type": "string"}}},
            {
                "properties": {
                    "uniqueItems": {"type": "array", "items": {"type": "string"}},
                    "format": {"type": "string"},
                }
            },
            ("uniqueItems",),
        ),
        (
            {"const": UNIQUE, "enum": [UNIQUE], "default": UNIQUE, "examples": [UNIQUE]},
            {"const": UNIQUE, "enum": [UNIQUE], "default": UNIQUE, "examples": [UNIQUE]},
            (),
        ),
        (
            {
                "$defs": {"a": {"not": {}}},
                "anyOf": [{"contains": {}}, {"items": {"format": "path"}}],
                "additionalProperties": {"propertyNames": {}},
                "prefixItems": [True, {"format": "path"}],
            },
            {
                "$defs": {"a": {}},
                "anyOf": [{}, {"items": {}}],
                "additionalProperties": {},
                "prefixItems": [True, {}],
            },
            ("not", "propertyNames", "format:path", "contains"),
        ),
    ],
)
def test_only_what_a_schema_says_itself_is_removed(
    schema: dict[str, Any], left: dict[str, Any], removed: tuple[str, ...]
) -> None:
    copy = json.loads(json.dumps(schema))
    assert relax(copy) == removed
    assert copy == left
    assert relax(copy) == ()


PATTERNS = {
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": False,
    r"a(?=b)": False,
    r"(?<=a)b": False,
    r"(a)\1": False,
    r"\bword\b": False,
    r"(?:ab)+": True,
    r"[(?=]x": True,
    r"\(\?=x": True,
    r"[\b]": False,
    r"[\\b]": True,
    r"ab\Z": False,
    r"\\b": True,
    r"^\d{3}-[a-z]+$": True,
    r"[]\1]": False,
    r"[]x(?=]": True,
    r"a*?(?i)b|c$": True,
    r"(?P<name>a)": True,
}
"""Patterns, and whether they can be enforced."""


@pytest.mark.parametrize(("pattern", "kept"), PATTERNS.items())
def test_a_pattern_that_looks_around_is_removed(pattern: str, kept: bool) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert relax(schema) == (() if kept else ("pattern",))
    assert ("pattern" in schema) is kept


def test_a_large_schema_takes_time_in_proportion() -> None:
    schema: dict[str, Any] = {"properties": {str(i): dict(UNIQUE) for i in range(20_000)}}
    deepest = schema
    for _ in range(50_000):
        deepest["items"] = {"uniqueItems": True}
        deepest = deepest["items"]
    assert relax(schema) == ("uniqueItems",)


@pytest.mark.parametrize("part", ["[", "(", "\\d", "[a", "[\\d", "(?:", "\\\\", "[]"])
def test_a_long_pattern_takes_time_in_proportion(part: str) -> None:
    schema = {"type": "string", "pattern": part * 200_000}
    started = time.process_time()
    assert relax(schema) == ()
    assert time.process_time() - started < 2


def refusal(schema: dict[str, Any]) -> str:
    """What llguidance says about a schema; empty if it accepts it."""
    import llguidance

    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    said: str = llguidance.LLMatcher.validate_grammar(grammar, None)
    return said


VALUES: dict[str, Any] = {
    "uniqueItems": True,
    "minContains": 1,
    "maxContains": 1,
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"type": "object"}},
    "dependencies": {"a": ["b"]},
    "$dynamicRef": "#a",
}


@pytest.mark.needs_vllm
def test_llguidance_refuses_each_of_them_and_accepts_the_rest() -> None:
    for keyword in UNENFORCED:
        schema = {"type": ["object", "array"], keyword: VALUES.get(keyword, {"type": "string"})}
        if keyword in ("then", "else"):
            schema["if"] = {"type": "object"}
        assert keyword in refusal(schema), keyword
        relax(schema)
        assert not refusal(schema), keyword
    for name in FORMATS:
        assert not refusal({"type": "string", "format": name}), name
    for name in ("password", "path", "binary", "json-string", "regex", "idn-email", "int32"):
        assert name in refusal({"type": "string", "format": name})


@pytest.mark.needs_vllm
@pytest.mark.parametrize(("pattern", "kept"), PATTERNS.items())
def test_llguidance_agrees_on_patterns(pattern: str, kept: bool) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert (refusal(schema) == "") is kept, refusal(schema)
    relax(schema)
    assert not refusal(schema)


def test_items_are_counted_where_a_reference_may_lead() -> None:
    hidden = {"$ref": "#/x/0", "x": [{"type": "array", "maxItems": 10**400, "minItems": 3}]}
    assert relax(hidden) == ()
    assert num_items(hidden) > MAX_ITEMS
    assert num_items({"items": {"maxItems": 7, "minItems": 2}}) == 9
