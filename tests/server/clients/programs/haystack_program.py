"""Haystack's generators of chats and of responses: a format, a tool, and acceptance figures."""

import json
import os
import sys
from typing import Any, Literal

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack.components.generators.chat import (
    OpenAIChatGenerator,
    OpenAIResponsesChatGenerator,
)
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    size: Literal["small", "large"]
    sunny: bool


@tool
def get_weather(city: Literal["Bonn", "Rome"]) -> str:
    """The weather of a city."""
    return "rain in " + city


def reply(kind: Any, url: str, text: str, **more: Any) -> ChatMessage:
    """The answer of a generator to a text."""
    fields = more.pop("fields", {})
    generator = kind(
        api_key=Secret.from_token("none"),
        model="specgate-demo",
        api_base_url=url,
        generation_kwargs={"temperature": 0, **fields},
        **more,
    )
    return generator.run([ChatMessage.from_user(text)])["replies"][0]


def forced(kind: Any, url: str) -> dict[str, Any]:
    """A format and a required call."""
    format_field = "response_format" if kind is OpenAIChatGenerator else "text_format"
    formatted = reply(kind, url, "Name a city as JSON.", fields={format_field: City})
    fields = {"tool_choice": "required", "parallel_tool_calls": False}
    called = reply(kind, url, "Hello.", fields=fields, tools=[get_weather])
    return {
        "typed": type(City.model_validate_json(formatted.text)).__name__,
        "calls": [[call.tool_name, sorted(call.arguments)] for call in called.tool_calls],
    }


def figures(kind: Any, url: str) -> dict[str, Any]:
    """The acceptance figures, where the client keeps them."""
    fields = {"extra_body": {"spec_decode": {"proposer": "ngram"}}}
    streamed = {**fields, "stream_options": {"include_usage": True}}
    if kind is OpenAIResponsesChatGenerator:
        streamed = fields
    answers = {
        "whole": reply(kind, url, "word", fields=fields),
        "streamed": reply(
            kind, url, "word", fields=streamed, streaming_callback=lambda chunk: None
        ),
    }
    figures_by_name = {}
    for name, answer in answers.items():
        usage = answer.meta["usage"]
        details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
        names = ("num_draft_tokens", "num_accepted_draft_tokens")
        figures_by_name[name] = {"usage": [details[name] for name in names], "headers": None}
    return figures_by_name


def main() -> None:
    url, part = sys.argv[1:]
    program = {"forced": forced, "figures": figures}[part]
    kinds = {"chat": OpenAIChatGenerator, "responses": OpenAIResponsesChatGenerator}
    print(json.dumps({name: program(kind, url) for name, kind in kinds.items()}))


main()
