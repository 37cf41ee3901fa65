"""`POST /v1/messages` and `/v1/messages/count_tokens`: a chat in Anthropic's format."""

import json
from pathlib import Path
from typing import Any

import pytest

from server.http.headers import IGNORED_FIELDS, SPEC_METHOD
from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway
from tests.server.routes.test_responses_tools import call_text
from tests.server.tool_bodies import WEATHER

PATH = "/v1/messages"
TOOLS: list[dict[str, Any]] = [
    {"name": "get_weather", "description": "d", "input_schema": WEATHER},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
ANSWERS = {
    "one call": "Well. " + call_text("get_weather", city="Bonn"),
    "think first": "<think>I look.</think>It is so.",
    "infinity": '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>',
    "half a pair": '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d", "b": 2}}</tool_call>',
    "a list": '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
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


def message(content: Any, **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 60, "messages": [{"role": "user", "content": content}], **fields}


async def ask(gateway: Gateway, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await gateway.post(PATH, body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(text: str) -> list[dict[str, Any]]:
    """The data of a stream's events, whose names are their types."""
    stream = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        stream.append(event)
    return stream


def rebuilt(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that a stream's events make."""
    blocks: list[dict[str, Any]] = []
    parts: list[str] = []
    for event in stream:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            parts = []
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            (text,) = (v for k, v in event["delta"].items() if k != "type")
            parts.append(text)
        elif event["type"] == "content_block_stop":
            block = blocks[-1]
            if block["type"] == "tool_use":
                block["input"] = json.loads("".join(parts))
            else:
                block["text" if block["type"] == "text" else "thinking"] = "".join(parts)
    return blocks


async def test_a_message_is_a_chats_answer(gateway: Gateway) -> None:
    body = message("word", system="Be brief.", temperature=0)
    answer = await ask(gateway, body)
    chat = await gateway.client.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "system", "content": "Be brief."}, *body["messages"]],
            "max_tokens": 60,
            "temperature": 0,
        },
    )
    (choice,) = chat.json()["choices"]
    assert answer["content"] == [{"type": "text", "text": choice["message"]["content"]}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", MODEL)
    assert answer["id"].startswith("msg_")
    assert answer["stop_reason"] == "max_tokens"
    usage, other = answer["usage"], chat.json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == other["prompt_tokens"]
    assert usage["output_tokens"] == other["completion_tokens"] == 60
    drafted = answer["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert usage["num_draft_tokens"] == drafted > 0


async def test_a_stream_has_the_same_message(choosing: Gateway) -> None:
    for text, kinds in (
        ("word", ["text"]),
        ("one call", ["text", "tool_use"]),
        ("think first", ["thinking", "text"]),
    ):
        body = message(text, tools=TOOLS, temperature=0)
        whole = await ask(choosing, body)
        response = await choosing.post(PATH, body | {"stream": True})
        stream = events(response.text)
        assert (stream[0]["type"], stream[-1]["type"]) == ("message_start", "message_stop")
        assert [block["type"] for block in whole["content"]] == kinds
        blocks = [
            {k: v for k, v in block.items() if k != "id"}
            for block in (*rebuilt(stream), *whole["content"])
        ]
        assert blocks[: len(kinds)] == blocks[len(kinds) :]
        assert stream[0]["message"]["usage"]["output_tokens"] == 0
        end = stream[-2]
        assert end["delta"]["stop_reason"] == whole["stop_reason"]
        assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        assert "speculative_decoding" in end["metrics"]


async def test_a_call_is_a_block_and_ends_the_turn(choosing: Gateway) -> None:
    answer = await ask(choosing, message("one call", tools=TOOLS))
    text, call = answer["content"]
    assert text["text"].startswith("Well.")
    assert (call["name"], call["input"]) == ("get_weather", {"city": "Bonn"})
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("infinity", {"arguments": '{"a": Infinity}'}),
        ("half a pair", {"a": "\ud83d", "b": 2}),
        ("a list", {"arguments": "[1]"}),
    ],
)
async def test_odd_arguments_of_a_call_are_not_lost(
    choosing: Gateway, text: str, arguments: dict[str, Any]
) -> None:
    answer = await ask(choosing, message(text, tools=TOOLS))
    assert answer["content"][-1]["input"] == arguments
    stream = (await choosing.post(PATH, message(text, tools=TOOLS, stream=True))).text
    assert events(stream)[-1]["type"] == "message_stop"


async def test_a_stop_sequence_that_cuts_a_forced_call_is_told(gateway: Gateway) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    body = message("a", tools=TOOLS, tool_choice=choice, stop_sequences=[":"])
    answer = await ask(gateway, body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", ":")


async def test_a_choice_of_a_tool_forces_a_call(gateway: Gateway) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        answer = await ask(gateway, message("a", tools=TOOLS[:1], tool_choice=choice))
        assert answer["content"][0]["name"] == "get_weather"
        assert "city" in answer["content"][0]["input"]
        assert answer["stop_reason"] == "tool_use"
    one = {"type": "any", "disable_parallel_tool_use": True}
    answer = await ask(gateway, message("a", tools=TOOLS, tool_choice=one, max_tokens=400))
    assert len(answer["content"]) == 1


async def test_stop_sequences_are_told(gateway: Gateway) -> None:
    whole = (await ask(gateway, message("word", temperature=0)))["content"][0]["text"]
    stop = whole.split()[3]
    answer = await ask(gateway, message("word", temperature=0, stop_sequences=[stop]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert answer["content"][0]["text"] == whole[: whole.index(stop)]


async def test_the_conversation_is_rendered_as_a_chat(
    choosing: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[tuple[list[Any], dict[str, Any]]] = []
    encode = choosing.runtime.renderer.encode_chat

    async def recorded(messages: list[Any], **fields: Any) -> tuple[int, ...]:
        rendered.append((messages, fields))
        return await encode(messages, **fields)

    monkeypatch.setattr(choosing.runtime.renderer, "encode_chat", recorded)
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text], "is_error": True}
    call = {"type": "tool_use", "id": "c1", "name": "now", "input": {}}
    conversation = [
        {"role": "user", "content": [text, text]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "c1", "name": "now", "input": {"b": [1]}},
            ],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": [call, text]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "The answer"},
    ]
    body = {"max_tokens": 5, "messages": conversation, "system": [text], "tools": TOOLS}
    await ask(choosing, body | {"thinking": {"type": "enabled", "budget_tokens": 1024}})
    ((messages, fields),) = rendered
    system, user, answer, tool, more, rule, call_only, text_after, _, prefix = messages
    assert (system["role"], system["content"]) == ("system", "a")
    assert user["content"] == "a\na"
    assert answer["reasoning_content"] == "hm"
    assert answer["tool_calls"][0]["function"] == {"name": "now", "arguments": {"b": [1]}}
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "c1", "Error: a")
    assert (more["role"], more["content"]) == ("user", "b")
    assert (rule["role"], rule["content"]) == ("system", "Be kind.")
    assert (call_only["content"], text_after["content"]) == (None, "a")
    assert prefix["content"] == "The answer"
    assert fields["continue_final_message"]
    assert not fields["add_generation_prompt"]
    assert fields["variables"] == {"enable_thinking": True}
    assert [one["function"]["name"] for one in fields["tools"]] == ["get_weather", "now"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_thinking_that_the_template_does_not_know_is_named(
    start: StartGateway, tmp_path: Path, path: str
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}{{ enable_thinking }}")
    knowing = await start(chat_template=str(template))
    gateway = await start()
    for kind, names in (("enabled", "thinking"), ("adaptive", "thinking"), ("disabled", None)):
        body = {**message("a"), "thinking": {"type": kind}}
        if path != PATH:
            del body["max_tokens"]
        response = await gateway.post(path, body)
        assert (response.status_code, response.headers.get(IGNORED_FIELDS)) == (200, names)
        response = await knowing.post(path, body)
        assert (response.status_code, response.headers.get(IGNORED_FIELDS)) == (200, None)
    strict = await start(strict_fields=True)
    body = {"messages": [{"role": "user", "content": "a"}], "thinking": {"type": "enabled"}}
    body |= {"max_tokens": 4} if path == PATH else {}
    error = (await strict.post(path, body)).json()["error"]
    assert error["param"] == "thinking"


async def test_the_choices_that_need_no_parser_have_the_clients_names(start: StartGateway) -> None:
    gateway = await start(tool_call_parser="none")
    error = (await ask(gateway, message("a", tools=TOOLS), 400))["error"]
    assert error["param"] == "tool_choice"
    assert "'any', 'tool' and 'none'" in error["message"]


async def test_thinking_can_be_left_out(choosing: Gateway) -> None:
    for thinking in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        answer = await ask(choosing, message("think first", thinking=thinking))
        assert [block["type"] for block in answer["content"]] == ["text"]


async def test_thinking_ends_after_its_budget(choosing: Gateway) -> None:
    whole = await ask(choosing, message("think first"))
    thinking = {"type": "enabled", "budget_tokens": 2}
    short = await ask(choosing, message("think first", thinking=thinking))
    (reasoning, text), (first_words, text_after) = whole["content"], short["content"]
    assert reasoning["thinking"].startswith(first_words["thinking"])
    assert 0 < len(first_words["thinking"]) < len(reasoning["thinking"])
    assert text_after == text
    response = await choosing.post(PATH, message("a", thinking={**thinking, "type": "disabled"}))
    assert response.headers[IGNORED_FIELDS] == "thinking.budget_tokens"


async def test_a_format_holds_the_text_to_its_schema(gateway: Gateway) -> None:
    form = {"type": "json_schema", "schema": WEATHER}
    answer = await ask(gateway, message("a", output_config={"format": form}, max_tokens=300))
    assert "city" in json.loads(answer["content"][0]["text"])


async def test_what_is_ignored_is_named(gateway: Gateway) -> None:
    tools = [
        TOOLS[0] | {"cache_control": {"type": "ephemeral"}},
        TOOLS[1] | {"input_examples": [{}]},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 1},
    ]
    body = message(
        "a",
        tools=tools,
        tool_choice={"type": "none"},
        metadata={"user_id": "me"},
        thinking={"type": "enabled", "budget_tokens": 2000},
        unheard_of=1,
    )
    response = await gateway.post(PATH, body)
    names = response.headers[IGNORED_FIELDS].split(", ")
    assert sorted(names) == [
        "thinking",
        "thinking.budget_tokens",
        "tools.1.input_examples",
        "tools.2",
        "unheard_of",
    ]
    counted = {name: body[name] for name in ("messages", "tools")}
    response = await gateway.post(f"{PATH}/count_tokens", counted)
    assert response.headers[IGNORED_FIELDS] == "tools.1.input_examples, tools.2"


async def test_the_proposer_is_chosen_as_in_a_chat(gateway: Gateway) -> None:
    for more, headers in (
        ({"spec_decode": {"proposer": "ngram"}}, {}),
        ({"model": f"{MODEL}:ngram"}, {}),
        ({}, {"x-specgate-proposer": "ngram"}),
    ):
        response = await gateway.client.post(PATH, json=message("a", **more), headers=headers)
        assert response.headers[SPEC_METHOD] == "ngram"


async def test_tokens_are_counted_as_they_are_read(gateway: Gateway) -> None:
    body = message("word word", system="Be brief.", tools=TOOLS, tool_choice={"type": "none"})
    usage = (await ask(gateway, body))["usage"]
    counted = {name: value for name, value in body.items() if name != "max_tokens"}
    response = await gateway.post(f"{PATH}/count_tokens", counted)
    assert response.json() == {
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]
    }


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}
TEXT = {"type": "text", "text": "a"}
BLOCKS = [{"role": "user", "content": [TEXT] * 5001}] * 2
RESULTS = [{"role": "user", "content": [RESULT | {"content": [TEXT] * 5000}] * 2}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "system", "content": [RESULT]}]}, "messages.0.content.0"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["a"]}, "stop"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools.0.input_schema"),
        ({"system": "\ud800"}, "system.content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages.0.content.0.tool_use_id"),
        (
            {"messages": [{"role": "assistant", "content": [RESULT | {"content": "a"}]}]},
            "messages.0.content.0",
        ),
        (
            {"messages": [{"role": "user", "content": [RESULT | {"content": "a"}]}]},
            "messages.0.content.0.tool_use_id",
        ),
        ({"messages": BLOCKS}, "messages"),
        ({"messages": RESULTS}, "messages"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [TOOLS[0]] * 2}, "tools.1.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "any", "name": "now"}}, "tool_choice.name"),
        ({"n": 2}, "n"),
        ({"repetition_detection": {}}, "repetition_detection"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"temperature": 3}, "temperature"),
        ({"spec_decode": {"proposer": "nope"}}, "spec_decode.proposer"),
        ({"system": [IMAGE]}, "system.0"),
    ],
)
async def test_an_error_has_anthropics_form_and_names_the_field(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    response = await gateway.post(PATH, message("a") | fields)
    body = response.json()
    assert (response.status_code, body["type"]) == (400, "error"), body
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    error = body["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


async def test_a_key_comes_in_anthropics_header(start: StartGateway) -> None:
    gateway = await start(api_key=("secret",))
    post = gateway.client.post
    gateway.client.headers.pop("authorization", None)
    for headers, status in (
        ({}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": "secret"}, 200),
    ):
        response = await post(PATH, json=message("a"), headers=headers)
        assert response.status_code == status, response.text
        if status == 401:
            assert response.json()["error"]["type"] == "authentication_error"


async def test_a_full_queue_is_a_rate_limit(start: StartGateway) -> None:
    gateway = await start(max_key_requests_per_minute=1)
    await ask(gateway, message("a", max_tokens=1))
    error = (await ask(gateway, message("a"), 429))["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


async def test_a_stream_that_fails_ends_with_an_error(start: StartGateway) -> None:
    trouble = {"fake_fail_prompt": "word", "fake_trouble_after_tokens": 3}
    gateway = await start(engine_args=trouble)
    response = await gateway.post(PATH, message("word", stream=True))
    stream = events(response.text)
    assert stream[0]["type"] == "message_start"
    assert (stream[-1]["type"], stream[-1]["error"]["type"]) == ("error", "api_error")
