"""Chats whose answers have a form: JSON with a schema, and calls of tools."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from benchmarks.load.prompts import Prompt

_NAME = {"type": "string", "pattern": "^[a-z_]{1,24}$"}
_KIND = {"enum": ["function", "method", "class", "module"]}
_LINES = {"type": "integer", "minimum": 1, "maximum": 999}
_FLAG = {"type": "boolean"}


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has all these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: Sequence[Mapping[str, Any]] = (
    _object(definition=_object(kind=_KIND, name=_NAME), documented=_FLAG, line_count=_LINES),
    _object(
        summary={"type": "string", "pattern": "^[A-Za-z ,]{8,60}$"},
        parameters={
            "type": "array",
            "items": _object(name=_NAME, required=_FLAG),
            "minItems": 1,
            "maxItems": 3,
        },
        returns_value=_FLAG,
    ),
)
"""The schemas of answers."""

TOOLS: Sequence[Mapping[str, Any]] = tuple(
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in (
        ("search_definitions", _object(kind=_KIND, name_contains=_NAME, max_results=_LINES)),
        ("open_source_file", _object(module_name=_NAME, first_line=_LINES, read_only=_FLAG)),
    )
)
"""The tools of which an answer must call one."""


def with_schemas(chats: Sequence[Prompt]) -> list[Prompt]:
    """The chats, each with a schema for its answer, which depends only on the chat."""
    return [
        _with(chat, "schema", {"response_format": _format(SCHEMAS[crc32(chat.id.encode()) % 2])})
        for chat in chats
    ]


def with_tools(chats: Sequence[Prompt]) -> list[Prompt]:
    """The chats, each with tools of which one must be called."""
    fields = {"tools": list(TOOLS), "tool_choice": "required"}
    return [_with(chat, "tool", fields) for chat in chats]


def _format(schema: Mapping[str, Any]) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def _with(chat: Prompt, label: str, fields: Mapping[str, Any]) -> Prompt:
    content = {**chat.content, **fields}
    return replace(chat, id=f"{label}-{chat.id}", label=label, content=content)
