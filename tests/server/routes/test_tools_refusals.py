"""Tools in `POST /v1/chat/completions`: wrong input."""

from typing import Any

import pytest

from server.schema.bounds import MAX_SCHEMA_CHARS, MAX_TOOL_NESTING
from server.schema.tools import MAX_TOOLS
from tests.server.gateway import Gateway
from tests.server.tool_bodies import NAMED, TOOLS, allowed, named, tool


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(levels):
        schema = {"items": schema}
    return {"type": "object", "properties": {"a": schema}}


ALLOWED = "tool_choice.allowed_tools.tools"

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": {}}, "tools"),
    ({"tools": "get"}, "tools"),
    ({"tools": ["get"]}, "tools.0"),
    ({"tools": [{}]}, "tools.0.type"),
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
    ({"tools": [tool("now"), tool("two words")]}, "tools.1.function.name"),
    ({"tools": [tool("")]}, "tools.0.function.name"),
    ({"tools": [tool("x" * 65)]}, "tools.0.function.name"),
    ({"tools": [tool("now\n")]}, "tools.0.function.name"),
    ({"tools": [tool(5)]}, "tools.0.function.name"),  # type: ignore[arg-type]
    ({"tools": [tool("now"), tool("now")]}, "tools.1.function.name"),
    ({"tools": [tool("now", colour="red")]}, "tools.0.function.colour"),
    ({"tools": [{**tool("now"), "colour": "red"}]}, "tools.0.colour"),
    ({"tools": [tool("now", description=5)]}, "tools.0.function.description"),
    ({"tools": [tool("now", description="\ud800")]}, "tools.0.function.description"),
    ({"tools": [tool("now", strict="yes")]}, "tools.0.function.strict"),
    (
        {"tools": [tool("now", {"description": "\ud800"})], "tool_choice": "none"},
        "tools.0.function.parameters.description",
    ),
    ({"tools": [tool("now", [])]}, "tools.0.function.parameters"),
    ({"tools": [tool("now", "{}")]}, "tools.0.function.parameters"),
    ({"tools": [tool("now", {"type": "string"})]}, "tools.0.function.parameters"),
    ({"tools": [tool("now", {"const": float("nan")})]}, "tools.0.function.parameters"),
    ({"tools": [tool("now", nested(MAX_TOOL_NESTING))]}, "tools.0.function.parameters"),
    (
        {"tools": [tool("now"), tool("a", {"description": "x" * MAX_SCHEMA_CHARS})]},
        "tools.1.function.parameters",
    ),
    ({"tools": [tool("now", {"$ref": "#"})]}, "tools.0.function.parameters"),
    ({"tools": [tool(f"t{i}") for i in range(MAX_TOOLS + 1)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": 5}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": TOOLS, "tool_choice": named(None)}, "tool_choice.function.name"),
    ({"tools": TOOLS, "tool_choice": named("nope")}, "tool_choice.function.name"),
    ({"tools": TOOLS, "tool_choice": named("x" * 5000)}, "tool_choice.function.name"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        "tool_choice.allowed_tools.mode",
    ),
    ({"tools": TOOLS, "tool_choice": allowed("auto", "nope")}, f"{ALLOWED}.0.function.name"),
    ({"tools": TOOLS, "tool_choice": allowed("auto")}, ALLOWED),
    ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ({"tools": TOOLS, "tool_choice": NAMED, "min_tokens": 2}, "min_tokens"),
    (
        {"tools": TOOLS, "tool_choice": NAMED, "structured_outputs": {"json": {}}},
        "structured_outputs",
    ),
    ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"include_reasoning": "no"}, "include_reasoning"),
]
"""Refused fields, and the field that the error names."""


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{i}" for i in range(len(WRONG))])
async def test_wrong_input_is_a_400_that_names_its_field(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        response = await gateway.chat(max_tokens=4, stream=stream, **fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), error
        assert len(error["message"]) < 500


async def test_a_choice_that_needs_a_tool_says_so(gateway: Gateway) -> None:
    error = (await gateway.chat(tools=[], tool_choice="required")).json()["error"]
    assert "at least one tool" in error["message"]


async def test_old_names_say_what_to_send_instead(gateway: Gateway) -> None:
    for field, value, instead in (
        ("reasoning", {"effort": "low"}, "send reasoning_effort"),
        ("functions", [{"name": "f"}], "send tools"),
        ("function_call", {"name": "f"}, "send tool_choice"),
    ):
        error = (await gateway.chat(**{field: value})).json()["error"]
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")
        assert instead in error["message"]


async def test_a_schema_that_the_engine_refuses_names_the_tools(gateway: Gateway) -> None:
    tools = [tool("a", {"properties": {"x": {"pattern": "a"}}, "required": ["x"]})]
    for choice in ("required", named("a")):
        error = (await gateway.chat(tools=tools, tool_choice=choice)).json()["error"]
        assert error["param"] == "tools.0.function.parameters"
    tools.append(tool("b"))
    error = (await gateway.chat(tools=tools, tool_choice="required")).json()["error"]
    assert error["param"] == "tools"


async def test_tools_are_not_for_completions(gateway: Gateway) -> None:
    for field, value in (("tools", TOOLS), ("tool_choice", "required")):
        error = (await gateway.complete(**{field: value})).json()["error"]
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")


async def test_keywords_that_are_not_enforced_are_named_or_refused_with_strict(
    gateway: Gateway,
) -> None:
    header = "x-specgate-unenforced-keywords"
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    for choice in ("required", named("a")):
        response = await gateway.chat(tools=[tool("a", schema)], tool_choice=choice)
        assert (response.status_code, response.headers[header]) == (200, "uniqueItems")
        strict = [tool("a", schema, strict=True)]
        error = (await gateway.chat(tools=strict, tool_choice=choice)).json()["error"]
        assert error["param"] == "tools.0.function.parameters"
        assert "uniqueItems" in error["message"]
