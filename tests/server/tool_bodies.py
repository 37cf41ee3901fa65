"""Tools, and scripted answers with calls, for the tests of several routes."""

import json
from typing import Any

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"$ref": "#/$defs/unit"},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 7}},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["celsius", "kelvin"]}},
}
STOCK: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"$ref": "#/$defs/unit"}, "next": {"$ref": "#"}},
    "required": ["unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"type": "boolean"}},
}
SCHEMAS = {"get_weather": WEATHER, "get-stock": STOCK, "now": {"maxProperties": 0}}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"Calls {name}.", "parameters": parameters, **more}
    return {"type": "function", "function": function}


TOOLS = [tool("get_weather", WEATHER), tool("get-stock", STOCK, strict=True), tool("now")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
AUTO = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


def call_text(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ANSWERS = {
    "one call": "Well. " + call_text("get_weather", city="Bonn"),
    "two calls": call_text("now") + call_text("get-stock", unit=True),
    "no call": "Just 5 < 6.",
    "broken call": "Well. " + call_text("now") + "<tool_call>{now}</tool_call> So.",
    "thinking": "<think>First, <b>this</b>.</think>Then that.",
    "think and call": "<think>I look.</think>" + call_text("now"),
}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice among some of the tools."""
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
