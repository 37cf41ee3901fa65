"""Responses and their events, checked with the models of OpenAI's own package."""

import json
from typing import Any, get_args

from openai.types.responses import (
    Response,
    ResponseFunctionToolCallItem,
    ResponseFunctionToolCallOutputItem,
    ResponseInputMessageItem,
    ResponseItemList,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ResponseStreamEvent,
)
from pydantic import BaseModel

_UNION = get_args(ResponseStreamEvent)[0]
EVENTS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(_UNION)
}
"""Type -> model, of every event that OpenAI has."""

ITEMS: dict[str, type[BaseModel]] = {
    "function_call": ResponseFunctionToolCallItem,
    "function_call_output": ResponseFunctionToolCallOutputItem,
    "reasoning": ResponseReasoningItem,
}

LIFECYCLE = ("created", "in_progress", "completed", "incomplete", "failed")
"""The endings of the events that have the whole response."""


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """The response, which must be one of OpenAI's."""
    Response.model_validate(response)
    return response


def checked_list(page: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a page, each of which must be one of OpenAI's."""
    ResponseItemList.model_validate(page)
    for item in page["data"]:
        kind = ITEMS.get(item["type"])
        if kind is None:
            answers = item["role"] == "assistant"
            kind = ResponseOutputMessage if answers else ResponseInputMessageItem
        kind.model_validate(item)
    items: list[dict[str, Any]] = page["data"]
    return items


def checked_events(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream, in OpenAI's format and numbered from 0."""
    assert text.endswith("\n\n")
    blocks = [block for block in text.removesuffix("\n\n").split("\n\n") if block[0] != ":"]
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENTS[event["type"]].model_validate(event)
        events.append(event)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types without `response.`, with a run of equal ones as one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if not i or names[i - 1] != name]


def text_of(response: dict[str, Any]) -> str:
    """All text of a response."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
