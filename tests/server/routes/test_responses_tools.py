"""Function tools, reasoning and formats in `POST /v1/responses`."""

import json
from typing import Any

import jsonschema
import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.response_events import checked, checked_events, kinds, text_of

PATH = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters, "strict": True}


def call_text(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


TOOLS = [tool("get_weather", WEATHER), tool("now")]
NAMED = {"type": "function", "name": "get_weather"}
ANSWERS = {
    "one call": "Well. " + call_text("get_weather", city="Bonn"),
    "two calls": call_text("now") + call_text("get_weather", city="Ulm"),
    "no call": "Just 5 < 6.",
    "think and call": "<think>I look.</think>" + call_text("now"),
}


@pytest.fixture
async def choosing(start: StartGateway) -> Gateway:
    """A server with parsers, and scripted answers."""
    return await start(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="deepseek_r1",
        engine_args={"fake_answers": ANSWERS},
    )


async def both(gateway: Gateway, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The response in one piece, and the events of the same request as a stream."""
    body = {"temperature": 0, **fields}
    whole = await gateway.post(PATH, body)
    assert whole.status_code == 200, whole.text
    streamed = await gateway.post(PATH, {**body, "stream": True})
    return checked(whole.json()), checked_events(streamed.text)


def shown(output: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The kind and the text of each item; names belong to calls."""
    found = []
    for item in output:
        if item["type"] == "function_call":
            assert item["call_id"]
            found.append((item["name"], item["arguments"]))
        else:
            found.append((item["type"], "".join(part["text"] for part in item["content"])))
    return found


async def test_a_named_call_fits_its_schema_whole_and_streamed(gateway: Gateway) -> None:
    whole, events = await both(gateway, input="Hello", tools=TOOLS, tool_choice=NAMED)
    (item,) = whole["output"]
    jsonschema.validate(json.loads(item["arguments"]), WEATHER)
    assert (whole["status"], item["status"], item["name"]) == (
        "completed",
        "completed",
        "get_weather",
    )
    assert whole["tool_choice"] == NAMED
    assert [one["name"] for one in whole["tools"]] == ["get_weather", "now"]
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert shown(events[-1]["response"]["output"]) == shown(whole["output"])


async def test_required_calls_are_made_of_the_allowed_tools_only(gateway: Gateway) -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "now"}],
    }
    names = set()
    for seed in range(6):
        asked = {"input": "Hello", "tools": TOOLS, "temperature": 1, "seed": seed}
        for tool_choice in ("required", choice):
            whole, events = await both(gateway, **asked, tool_choice=tool_choice)
            assert shown(events[-1]["response"]["output"]) == shown(whole["output"])
            made = {item["name"] for item in whole["output"]}
            assert {item["type"] for item in whole["output"]} == {"function_call"}
            names |= made
            if tool_choice == choice:
                assert made == {"now"}
                assert whole["tool_choice"] == choice
    assert names == {"get_weather", "now"}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("one call", [("message", "Well. "), ("get_weather", '{"city": "Bonn"}')]),
        ("two calls", [("now", "{}"), ("get_weather", '{"city": "Ulm"}')]),
        ("no call", [("message", "Just 5 < 6.")]),
        ("think and call", [("reasoning", "I look."), ("now", "{}")]),
    ],
)
async def test_calls_and_reasoning_by_choice_are_items(
    choosing: Gateway, asked: str, wanted: list[tuple[str, str]]
) -> None:
    whole, events = await both(choosing, input=asked, tools=TOOLS)
    assert [(kind, text.strip()) for kind, text in shown(whole["output"])] == [
        (kind, text.strip()) for kind, text in wanted
    ]
    streamed = shown(events[-1]["response"]["output"])
    assert [(kind, text.strip()) for kind, text in streamed] == [
        (kind, text.strip()) for kind, text in wanted
    ]
    assert whole["status"] == "completed"


async def test_reasoning_tokens_are_counted(choosing: Gateway) -> None:
    whole, events = await both(choosing, input="think and call", tools=TOOLS)
    details = whole["usage"]["output_tokens_details"]
    chat = {"messages": [{"role": "user", "content": "think and call"}], "temperature": 0}
    answer = (await choosing.post("/v1/chat/completions", chat)).json()
    counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert details["reasoning_tokens"] == counted
    streamed = events[-1]["response"]["usage"]["output_tokens_details"]
    assert streamed["reasoning_tokens"] > 0
    assert "reasoning_text.delta" in kinds(events)


async def test_reasoning_can_be_left_out(choosing: Gateway) -> None:
    fields = {"input": "think and call", "tools": TOOLS, "include_reasoning": False}
    whole, events = await both(choosing, **fields)
    assert [item["type"] for item in whole["output"]] == ["function_call"]
    assert "reasoning_text.delta" not in kinds(events)


async def test_one_call_without_parallel_calls(choosing: Gateway) -> None:
    whole, events = await both(choosing, input="two calls", tools=TOOLS, parallel_tool_calls=False)
    assert [name for name, _ in shown(whole["output"])] == ["now"]
    assert shown(events[-1]["response"]["output"]) == shown(whole["output"])


async def test_a_conversation_with_a_call_is_that_of_a_chat(choosing: Gateway) -> None:
    first = (await choosing.post(PATH, {"input": "think and call", "tools": TOOLS})).json()
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12:00"}
    body = {"tools": TOOLS, "temperature": 0, "max_output_tokens": 8}
    by_id = {**body, "previous_response_id": first["id"], "input": [output]}
    question = {"role": "user", "content": "think and call"}
    by_items = {**body, "input": [question, *first["output"], output]}
    function = {"name": call["name"], "arguments": call["arguments"]}
    chat = {
        "messages": [
            question,
            {
                "role": "assistant",
                "reasoning_content": "I look.",
                "content": None,
                "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call["call_id"], "content": "12:00"},
        ],
        "tools": [
            {"type": "function", "function": {k: v for k, v in one.items() if k != "type"}}
            for one in TOOLS
        ],
        "temperature": 0,
        "max_tokens": 8,
    }
    answer = (await choosing.post("/v1/chat/completions", chat)).json()
    for asked in (by_id, by_items):
        response = await choosing.post(PATH, asked)
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["input_tokens"] == answer["usage"]["prompt_tokens"]
        ((kind, text),) = shown(response.json()["output"])
        message = answer["choices"][0]["message"]
        assert (kind, text) == ("reasoning", message["reasoning_content"])


async def test_a_call_without_its_output_is_refused_when_continued(choosing: Gateway) -> None:
    first = (await choosing.post(PATH, {"input": "one call", "tools": TOOLS})).json()
    body = {"previous_response_id": first["id"], "input": "And now?"}
    response = await choosing.post(PATH, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "previous_response_id"
    assert "has no output" in response.json()["error"]["message"]


async def test_a_call_that_a_limit_cuts_is_incomplete(gateway: Gateway) -> None:
    fields = {"input": "Hello", "tools": TOOLS, "tool_choice": NAMED, "max_output_tokens": 2}
    whole, events = await both(gateway, **fields)
    assert (whole["status"], whole["output"][-1]["status"]) == ("incomplete", "incomplete")
    assert events[-1]["type"] == "response.incomplete"


async def test_a_format_holds_the_text_to_its_schema(gateway: Gateway) -> None:
    wanted = {"type": "json_schema", "name": "weather", "schema": WEATHER, "strict": True}
    whole, events = await both(gateway, input="Hello", text={"format": wanted})
    jsonschema.validate(json.loads(text_of(whole)), WEATHER)
    assert text_of(events[-1]["response"]) == text_of(whole)
    assert whole["text"] == {"format": wanted, "verbosity": "medium"}


async def test_keywords_that_are_not_enforced_are_in_the_header(gateway: Gateway) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    schema = {"type": "object", "properties": {"n": numbers}, "additionalProperties": False}
    wanted: dict[str, Any] = {"type": "json_schema", "name": "numbers", "schema": schema}
    response = await gateway.post(PATH, {"input": "Hello", "text": {"format": wanted}})
    assert response.status_code == 200, response.text
    assert "uniqueItems" in response.headers["x-specgate-unenforced-keywords"]
    wanted["strict"] = True
    error = (await gateway.post(PATH, {"input": "Hello", "text": {"format": wanted}})).json()[
        "error"
    ]
    assert error["param"].startswith("text.format"), error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {**NAMED, "name": "x"}}, "tool_choice.name"),
        ({"tools": [tool("a b")], "tool_choice": "none"}, "tools.0.name"),
        ({"tools": [tool("a"), tool("a")], "tool_choice": "none"}, "tools.1.name"),
        ({"tools": [tool("a", {"type": "string"})], "tool_choice": "none"}, "tools.0.parameters"),
        ({"tools": [tool("a")] * 129, "tool_choice": "none"}, "tools"),
    ],
)
async def test_wrong_tools_are_named_in_the_fields_of_a_response(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    response = await gateway.post(PATH, {"input": "Hello", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert ".function." not in error["message"]


async def test_logprobs_belong_to_the_text_and_not_to_reasoning_or_calls(
    choosing: Gateway,
) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    whole, events = await both(choosing, input="no call", tools=TOOLS, **fields)
    told = whole["output"][0]["content"][0]["logprobs"]
    assert "".join(token["token"] for token in told).startswith("Just")
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told
    whole, events = await both(choosing, input="think and call", tools=TOOLS, **fields)
    assert shown(whole["output"]) == shown(events[-1]["response"]["output"])
